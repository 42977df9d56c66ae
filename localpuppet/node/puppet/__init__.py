"""Puppet as a program: its installation, its commands, its reports.

decides: `catalog`, `changes`, `fault`, `resources`, `types`.
acts: `command`, `environment`, `installation`, `launching`, `report`.
"""
