"""Lists of the dashboard: their rows, their order, and their export as files.

decides: `differing`, `drift`, `exporting`, `finding`, `releases`, `rollouts`.
"""
