"""Sealed values: secrets in a release that only the nodes of a group can open, offline.

decides: `age`, `authoring`, `checking`, `group_file`, `opening`, `value_file`.
acts: `released`, `sealing_key`, `serving`, `tree`, `trust`.
"""
