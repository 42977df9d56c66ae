"""What people meet at a terminal: one file a verb, and how things are shown.

verbs: `agent`, `apply`, `call`, `check`, `completion`, `data`, `hold`, `inventory`, `keys`,
    `lease`, `nodes`, `orchestrator`, `permissions`, `record`, `release`, `requests`, `rollback`,
    `stage`, `status`, `trigger`, `trying`, `units`, `web`.
shared by verbs: `asking`, `lazy_group`, `main`, `node_options`, `nodes_watch`,
    `progress`, `progress_line`, `render`, `render_node`, `render_reply`, `render_resources`,
    `render_run`.
"""
