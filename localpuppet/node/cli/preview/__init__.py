"""The command `localpuppet preview`, and how its result is shown.

verb: `command`.
shared by forms: `pages`, `wording`.
"""
