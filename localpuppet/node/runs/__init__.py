"""One supervised `puppet apply`, from its preparation to its record.

decides: `hold`, `interface`, `options`, `reason`, `run`.
acts: `attempts`, `classifier`, `metrics`, `preparing`, `provider`, `puppet_calls`, `query_record`,
  `records`, `release_check`, `rollback_service`, `run_replies`, `supervisor`.
ports: `observer`.
private: `verdict`.
"""
