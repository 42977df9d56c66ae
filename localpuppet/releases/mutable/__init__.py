"""What may change while it is used: a work tree or `trunk`, with the modules of its lock.

acts: `modules`, `trunk`, `work_tree`.
"""
