"""Commands that show the record of runs.

verbs: `history`.
shared by verbs: `queries`.
"""
