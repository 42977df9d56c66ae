"""Rollout commands: how operators send them, on this machine or over the bus, and what they do.

decides: `message`, `word`.
acts: `hearing`, `noting`, `saying`, `saying_here`.
"""
