"""Instance data: the cloud's data about the machine of this node.

decides: `data`.
acts: `facts`, `services`.
"""
