"""The command `localpuppet preview`, and how its result is shown.

verbs: `preview_command`.
"""
