"""A node's input, and the node document that Puppet's external node classifier gets.

A function may raise `InvalidInputError` for what people write, and `StateError` for this machine.

decides: `assignment`, `document`.
acts: `input`, `site_command`.
instance data of the cloud: `instance_data`, `instance_facts`, `metadata_services`.
"""
