"""Commands that show the data of runs: node document, Hiera data, instance data.

verbs: `enc`, `instance_data`, `lookup`.
"""
