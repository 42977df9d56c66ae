"""Builds a dashboard from the settings.

acts: `actions`, `dashboard`, `doors`.
"""
