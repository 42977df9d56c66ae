"""Lists of the dashboard: their rows, their order, and their export as files.

decides: `agreement`, `differing`, `exporting`, `failures`, `list_page`, `list_query`,
    `node_standings`, `ordered`, `releases`, `rollouts`, `tally`.
"""
