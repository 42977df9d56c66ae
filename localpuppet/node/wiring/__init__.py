"""Builds the parts of one node from a root and its settings.

acts: `code_sources`, `compile_engine`, `compiling`, `inputs`, `mutable_code`, `node`,
    `node_catalogs`, `ports`, `preview`, `release_making`, `releases`, `run`, `staged_releases`,
    `state`.
private: `forge`, `instance`.
"""
