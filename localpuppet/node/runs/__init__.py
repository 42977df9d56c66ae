"""One supervised `puppet apply`, from its preparation to its record.

decides: `hold`, `options`, `reason`, `run`.
acts: `attempts`, `metrics`, `preparing`, `query_record`, `records`, `rollback_service`,
  `run_replies`, `supervisor`.
ports: `observer`.
private: `node_lock`, `run_log`, `verdict`.
"""
