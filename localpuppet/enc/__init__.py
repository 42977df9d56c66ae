"""A node's input, and the node document that Puppet's external node classifier gets.

decides: `document`, `interpolation`.
acts: `classify`, `command`, `input`.
touches the world: `https`, `transfer`.
what the cloud says: `instance`.
"""
