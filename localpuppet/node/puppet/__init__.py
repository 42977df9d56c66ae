"""Puppet as a program: where it is, how it is called, what it leaves behind.

decides: `changes`, `fault`, `log_lines`, `metaparameters`, `resources`, `types`, `vocabulary`.
acts: `command`, `compiled_ruby`, `environment`, `facts`, `installation`, `launching`, `noted`,
`own_environment`, `report`, `run_lock`.
touches the world: `probe`.
"""
