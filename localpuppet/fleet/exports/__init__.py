"""Exported resources: what a node's catalogs export, and what its collectors take from other nodes.

decides: `document`, `proposing`, `resource`, `search`, `servers`.
acts: `bringing`, `collecting`, `recording`.
touches the world: `held`.
private: `policy`.
"""
