"""Puppet as a program: its installation, its commands, its reports.

decides: `catalog`, `changes`, `fault`, `resources`, `types`.
acts: `command_line`, `environment`, `installation`, `launching`, `report`.
"""
