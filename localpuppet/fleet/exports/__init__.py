"""Exported resources: what a catalog offers to other nodes, and what it takes of them.

decides: `choosing`, `document`, `guarding`, `policy`, `proposing`, `resource`, `search`, `servers`.
acts: `bringing`, `collecting`, `recording`.
touches the world: `held`, `outbox`.
"""
