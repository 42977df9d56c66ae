"""Shows what records of runs hold about other nodes, for `why`, `report` and `history`.

shared by verbs: `changes`, `collected`, `histories`.
"""
