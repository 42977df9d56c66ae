"""Builds the parts of one node from a root and its settings.

acts: `evaluating`, `forge`, `instance`, `makers`, `node`, `ports`, `releases`, `run`.
"""
