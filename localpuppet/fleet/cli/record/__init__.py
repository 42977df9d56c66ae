"""What the record of a run holds about other nodes, as `why` and `report` show it.

shared by verbs: `changes`, `collected`.
"""
