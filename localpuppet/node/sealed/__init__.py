"""Sealed values: secrets in a release that only the nodes of a group can open, offline.

decides: `age`, `authoring`, `sealed_files`, `sealed_findings`.
acts: `serving`, `tree`, `trust`.
"""
