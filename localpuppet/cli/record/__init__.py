"""Verbs that show what the record of runs holds.

verbs: `history`, `report`.
shared by verbs: `collected`, `queries`.
"""
