"""Instance data: the cloud's data about the machine of this node.

acts: `instance_facts`, `instance_data`, `services`.
"""
