"""One supervised `puppet apply`, from its preparation to its record.

decides: `attempt`, `hold`, `options`, `reason`, `run`.
acts: `assigning`, `attempts`, `good_runs`, `holds`, `listed`, `metrics`, `noop_report`,
    `preparing`, `query_record`, `records`, `rollback_service`, `supervisor`,
    `run_replies`, `trial`.
ports: `observer`.
private: `log_end`, `node_lock`, `open_record`, `retention`, `run_log`, `stopping`, `run_context`,
    `verdict`, `watching`.
"""
