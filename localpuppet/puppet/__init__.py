"""Puppet as a program: where it is, how it is called, what it leaves behind.

decides: `log_lines`, `metaparameters`, `resources`, `types`.
acts: `command`, `compiled_ruby`, `environment`, `facts`, `installation`, `kicks`, `launching`,
`report`, `run_lock`.
touches the world: `probe`.
"""
