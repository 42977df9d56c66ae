"""Puppet as a program: where it is, how it is called, what it leaves behind.

acts: `command`, `compiled_ruby`, `environment`, `facts`, `installation`, `kicks`, `log_lines`,
`report`, `resources`, `run_lock`, `types`.
touches the world: `probe`.
"""
