"""Sealed values: secrets in a release that only the nodes of a group can open, offline.

A function may raise `InvalidInputError` for what people write, and `StateError` for this machine.

decides: `age`, `authoring`, `sealed_files`, `sealed_findings`.
acts: `released`, `sealing_key`, `serving`, `tree`, `trust`.
"""
