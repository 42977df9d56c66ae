"""Builds a dashboard from the settings.

acts: `access`, `actions`, `dashboard`.
"""
