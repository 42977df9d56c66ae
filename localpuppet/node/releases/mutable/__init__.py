"""Mutable code: work trees, `trunk` and branches, with the modules of their locks.

acts: `branches`, `modules`, `trunk`, `work_tree`.
"""
