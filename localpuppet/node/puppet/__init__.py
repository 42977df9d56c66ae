"""Puppet as a program: its installation, its commands, its reports.

decides: `catalog`, `changes`, `command_line`, `resources`, `types`.
acts: `fault`, `installation`, `launching`, `report`.
"""
