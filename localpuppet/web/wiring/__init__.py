"""Builds a dashboard from the settings.

acts: `dashboard`.
private: `access`, `actions`.
"""
