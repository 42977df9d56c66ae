"""Lists of the dashboard: their rows, their order, and their export as files.

decides: `agreeing`, `asked`, `choosing`, `differing`, `exporting`, `failures`, `ordered`,
    `releases`, `rollouts`, `standing`, `tally`.
"""
