"""Shows what the record of a run holds about other nodes, for `why` and `report`.

shared by verbs: `changes`, `collected`.
"""
