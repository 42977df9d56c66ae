"""The bus on one machine: one SQLite file, and no server.

decides: `position`.
touches the world: `doorbell`, `file`, `place`, `store`.
"""
