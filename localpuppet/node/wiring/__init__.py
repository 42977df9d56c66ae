"""Builds the parts of one node from a root and its settings.

acts: `code_sources`, `compiling`, `forge`, `inputs`, `instance`, `mutable_code`, `node`, `ports`,
    `release_making`, `releases`, `run`, `staged_releases`, `state`.
"""
