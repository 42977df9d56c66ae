"""Builds the parts of one node from a root and its settings.

acts: `code_sources`, `compiling`, `node`, `preview`, `release_making`, `releases`, `run`, `state`.
"""
