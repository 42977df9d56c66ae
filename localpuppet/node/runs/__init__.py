"""One supervised `puppet apply`, from its preparation to its record.

decides: `hold`, `options`, `reason`, `run`.
acts: `attempts`, `listed`, `metrics`, `noop_report`, `preparing`, `query_record`, `records`,
  `rollback_service`, `run_replies`, `supervisor`.
ports: `observer`.
private: `log_end`, `node_lock`, `run_context`, `run_log`, `stopping`, `verdict`.
"""
