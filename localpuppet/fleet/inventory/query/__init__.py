"""Queries about nodes: the query languages, one tree for all, and its SQL statement.

decides: `ast_form`, `functions`, `parts`, `pql`, `syntax`, `tree`.
acts: `compiling`, `evaluating`, `records`.
private: `comparing`, `discovery`, `query_limits`.
"""
