"""Doors of the page: who may look at it, and where it listens.

decides: `crowd`, `loopback`, `people`, `rules`.
acts: `sessions`.
touches the world: `listening`, `serving`, `tls`.
"""
