"""One supervised `puppet apply`, from its preparation to its record.

decides: `interface`, `options`, `run`.
acts: `attempts`, `classifier`, `holds`, `interface_reader`, `metrics_file`, `preparing`,
  `puppet_calls`, `query_record`, `release_check`, `rollback_service`, `run_records`,
  `run_replies`, `supervisor`.
ports: `observer`.
private: `verdict`.
"""
