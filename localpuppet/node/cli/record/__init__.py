"""Commands that show the record of runs.

verbs: `history`, `report`.
shared by verbs: `queries`.
"""
