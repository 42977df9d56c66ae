"""The agent as two processes: an unprivileged one on the bus, and one that runs Puppet.

decides: `protocol`.
acts: `client`, `server`, `spool`.
"""
