"""What a run of this node is told: its node document, what Hiera has, what the cloud says.

verbs: `enc`, `instance_data`, `lookup`.
"""
