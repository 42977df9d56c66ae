"""What nodes say of themselves after their runs, as verbs.

verbs: `exports`, `facts`, `forget`, `publish`, `query`.
"""
