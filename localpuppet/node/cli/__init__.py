"""Commands of one node, and how results are printed.

packages: `preview`, `release`.
verbs: `apply`, `check`, `completion`, `data`, `history`, `hold`, `status`.
shared by verbs: `command`, `progress_line`, `render`, `render_run`.
"""
