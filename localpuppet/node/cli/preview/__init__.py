"""The command `localpuppet preview`, and how its result is shown.

shared by forms: `pages`, `wording`.
verbs: `preview_command`.
"""
