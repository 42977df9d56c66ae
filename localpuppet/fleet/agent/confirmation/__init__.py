"""Confirm a deployed release through the bus, or return this node to the last good release.

decides: `pending`.
acts: `retreat`, `service`.
"""
