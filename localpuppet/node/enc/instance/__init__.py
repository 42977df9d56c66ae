"""Instance data: the cloud's data about the machine of this node.

decides: `data`, `facts`.
acts: `services`, `source`.
"""
