"""Puppet as a program: its installation, its commands, its reports.

decides: `catalog`, `changes`, `fault`, `log_lines`, `metaparameters`, `resources`, `types`.
acts: `command`, `environment`, `facts`, `installation`, `launching`, `own_environment`, `report`,
  `run_lock`.
touches the world: `probe`.
"""
