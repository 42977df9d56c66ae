"""The command that starts the dashboard.

verbs: `web`.
"""
