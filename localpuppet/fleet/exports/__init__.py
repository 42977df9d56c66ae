"""Exported resources: what a node's catalogs export, and what its collectors take from other nodes.

decides: `collectors`, `resource`.
acts: `recording`.
touches the world: `held`.
"""
