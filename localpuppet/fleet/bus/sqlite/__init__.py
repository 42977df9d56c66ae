"""The bus on one machine: one SQLite file, without a server.

decides: `position`.
touches the world: `doorbell`, `file`, `place`, `store`.
"""
