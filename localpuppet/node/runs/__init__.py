"""One supervised `puppet apply`, from its preparation to its record.

decides: `attempt`, `hold`, `options`, `reason`, `retention`, `run`, `stopping`.
acts: `assigning`, `attempts`, `candidate`, `going_back`, `good_runs`, `holds`, `listed`, `log_end`,
    `metrics`, `node_lock`, `open_record`, `preparing`, `query_record`, `records`, `run_log`,
    `supervisor`, `telling`, `told_changes`, `told_context`, `trying`, `watching`.
ports: `observer`.
"""
