"""What may change from run to run: work trees, `trunk`, branches; with the modules of their locks.

acts: `branches`, `modules`, `trunk`, `work_tree`.
"""
