"""Builds the parts of one node from a root and its settings.

acts: `forge`, `instance`, `node`, `ports`, `release_making`, `releases`, `run`, `staged_releases`.
"""
