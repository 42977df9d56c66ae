"""A node's input, and the node document that Puppet's external node classifier gets.

decides: `assignment`, `document`.
acts: `input`, `site_command`.
instance data of the cloud: `instance_data`, `instance_facts`, `metadata_services`.
"""
