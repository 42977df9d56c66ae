"""Confirm a deployed release through the bus, or return this node to the last good release.

decides: `decision`, `pending`.
acts: `bus_probe`, `memory`, `retreat`, `return_route`, `service`.
"""
