"""Lists of the dashboard: their rows, their order, and their export as files.

decides: `differing`, `drift`, `exporting`, `failures`, `finding`, `list_page`, `list_query`,
  `node_standings`, `releases`, `rollouts`.
"""
