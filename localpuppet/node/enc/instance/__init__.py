"""Instance data: the cloud's data about the machine of this node.

decides: `instance_data`.
acts: `instance_facts`, `services`.
"""
