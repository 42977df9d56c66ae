"""Sealed values: secrets in a release that only the nodes of a group can open, offline.

private: `age`, `group_file`, `opening`, `tree`, `value_file`.
"""
