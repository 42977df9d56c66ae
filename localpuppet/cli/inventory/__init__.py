"""What nodes say of themselves after their runs, as verbs.

verbs: `facts`, `forget`, `publish`, `query`.
"""
