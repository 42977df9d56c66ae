"""Commands of one node, and how results are printed.

verbs: `apply`, `check`, `completion`, `data`, `hold`, `preview`, `record`, `release`, `rollback`,
    `stage`, `status`, `trying`, `units`.
shared by verbs: `command`, `confirming`, `lazy_group`, `progress_line`,
    `render_resources`, `render_run`, `render`.
"""
