"""Queries about nodes: the query languages, and the evaluation of a query.

decides: `functions`, `node_facts`, `parts`, `tree`.
private: `ast_form`, `comparing`, `conditions`, `discovery`, `dotted`, `evaluating`, `fact_filter`,
    `hints`, `paging`, `patterns`, `pql`, `puppetdb`, `resource_scope`, `rows`, `syntax`.
"""
