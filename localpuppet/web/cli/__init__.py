"""The commands of the dashboard, of notifications and of hooks.

verbs: `hooks`, `notify`, `web`.
"""
