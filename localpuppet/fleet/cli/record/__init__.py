"""Shows what records of runs hold about other nodes, for `why`, `report`, `history` and `check`.

shared by verbs: `changes`, `checks`, `collected`, `histories`.
"""
