"""A release that somebody deployed is confirmed through the bus, or this node goes back.

decides: `deciding`, `pending`.
acts: `confirming`, `looking`, `memory`, `retreating`, `way_back`.
"""
