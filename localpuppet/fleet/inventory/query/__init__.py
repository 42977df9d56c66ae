"""Queries about nodes: the query languages, and the evaluation of a query.

decides: `answering`, `ast_form`, `budget`, `client_query`, `columns`, `functions`, `node_facts`,
    `parts`, `pql`, `records`, `syntax`, `tree`.
private: `comparing`, `conditions`, `discovery`, `dotted`, `evaluating`, `fact_filter`, `grouping`,
    `hints`, `paging`, `patterns`, `record_hints`, `resource_scope`, `rows`, `scanning`, `shaping`.
"""
