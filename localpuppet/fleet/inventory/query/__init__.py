"""Queries about nodes: the query languages, and the evaluation of a query.

decides: `ast_form`, `budget`, `client_query`, `columns`, `evaluating`, `functions`, `node_facts`,
    `parts`, `pql`, `records`, `syntax`, `tree`.
private: `comparing`, `conditions`, `discovery`, `dotted`, `fact_filter`, `grouping`,
    `hints`, `paging`, `patterns`, `record_hints`, `resource_scope`, `rows`, `scanning`, `shaping`.
"""
