"""Queries about nodes: the query languages, and the evaluation of a query.

decides: `ast_form`, `comparing`, `conditions`, `discovery`, `dotted`, `evaluating`, `fact_filter`,
    `functions`, `hints`, `node_facts`, `paging`, `parts`, `patterns`, `pql`, `puppetdb`,
    `resource_scope`, `rows`, `syntax`, `tree`.
"""
