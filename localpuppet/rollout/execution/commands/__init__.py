"""Rollout commands: how operators send them, on this machine or over the bus, and what they do.

decides: `command`.
acts: `local_sending`.
"""
