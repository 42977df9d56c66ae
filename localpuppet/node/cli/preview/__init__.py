"""The command `localpuppet preview`, and how its result is shown.

verb: `command`.
shared by verbs: `html`, `markdown`, `text`, `wording`.
"""
