"""From settings to a dashboard that serves.

acts: `actions`, `dashboard`, `doors`.
"""
