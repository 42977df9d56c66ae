"""Lists of the page: which rows are in them, in which order, and how they leave as files.

decides: `agreeing`, `asked`, `choosing`, `differing`, `exporting`, `failures`, `ordered`,
    `releases`, `rollouts`, `standing`, `tally`.
"""
