"""The bus on one machine: one SQLite file, and no server.

touches the world: `doorbell`, `file`, `place`, `store`.
"""
