"""Sealed values: secrets in a release that only the nodes of a group can open, offline.

decides: `age`, `authoring`, `group_file`, `opening`, `sealed_findings`, `value_file`.
acts: `released`, `sealing_key`, `serving`, `tree`, `trust`.
"""
