"""The agent in two processes: one that talks to the bus without rights, one that runs.

decides: `protocol`.
acts: `client`, `server`, `spool`.
"""
