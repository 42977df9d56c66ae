"""Confirm a deployed release through the bus, or return this node to the last good release.

decides: `deciding`, `pending`.
acts: `confirming`, `looking`, `memory`, `retreating`, `way_back`.
"""
