"""One supervised `puppet apply`, from its preparation to its record.

decides: `attempt`, `hold`, `options`, `reason`, `retention`, `run`, `stopping`.
acts: `assigning`, `attempts`, `candidate`, `good_runs`, `holds`, `listed`, `log_end`, `metrics`,
    `node_lock`, `noop_report`, `open_record`, `preparing`, `query_record`, `records`,
    `rollback_service`, `run_log`, `supervisor`, `telling`, `told_context`, `trial`, `watching`.
ports: `observer`.
"""
