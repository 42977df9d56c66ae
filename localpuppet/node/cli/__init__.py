"""Commands of one node, and how results are printed.

packages: `preview`, `release`.
verbs: `apply`, `check`, `data`, `history`, `hold`, `lookup`, `node_setup`, `status`.
shared by verbs: `command`, `progress_line`, `render`, `render_run`, `sealed_trust`.
"""
