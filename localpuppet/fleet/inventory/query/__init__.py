"""Queries about nodes: the query languages, and the evaluation of a query.

decides: `functions`, `node_facts`, `parts`, `tree`.
private: `answering`, `ast_form`, `budget`, `client_query`, `columns`, `comparing`, `conditions`,
    `discovery`, `dotted`, `evaluating`, `fact_filter`, `hints`, `paging`, `patterns`, `pql`,
    `puppetdb`, `records`, `resource_scope`, `rows`, `syntax`.
"""
