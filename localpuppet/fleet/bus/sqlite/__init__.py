"""The bus on one machine: one SQLite file, without a server.

touches the world: `store`.
private: `file`, `place`.
"""
