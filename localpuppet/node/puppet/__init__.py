"""Puppet as a program: its installation, its commands, its reports.

decides: `catalog`, `changes`, `command_line`, `environment`, `fault`, `resources`, `types`.
acts: `installation`, `launching`, `report`.
"""
