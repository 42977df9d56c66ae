"""Questions about nodes: the languages they are asked in, and what they find.

decides: `ast_form`, `comparing`, `conditions`, `discovery`, `dotted`, `evaluating`, `fact_filter`,
    `functions`, `hints`, `node_facts`, `paging`, `parts`, `patterns`, `pql`, `puppetdb`,
    `resource_scope`, `rows`, `syntax`, `tree`.
"""
