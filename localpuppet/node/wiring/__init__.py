"""Builds the parts of one node from a root and its settings.

acts: `code_sources`, `compiling`, `mutable_code`, `node`, `ports`, `preview`, `release_making`,
  `releases`, `run`, `staged_releases`, `state`.
private: `forge`, `instance`.
"""
