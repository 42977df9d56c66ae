"""Exported resources: what a node's catalogs export, and what its collectors take from other nodes.

decides: `resource`, `search`.
acts: `collect_policy`, `recording`.
touches the world: `held`.
"""
