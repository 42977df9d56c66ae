"""Sealed values: secrets in a release that only the nodes of a group can open, offline.

acts: `age`, `opening`, `serving`, `tree`.
private: `group_file`, `value_file`.
"""
