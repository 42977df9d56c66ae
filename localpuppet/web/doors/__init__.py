"""Doors of the page: who may look at it, and where it listens.

decides: `loopback`, `rules`.
acts: `sessions`.
touches the world: `serving`.
"""
