"""The commands of the dashboard and of notifications.

verbs: `notify`, `web`.
"""
