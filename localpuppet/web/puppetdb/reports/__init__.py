"""Reports and events of PuppetDB's API, from the dashboard's memory.

private: `missing_reports`, `report_hash`, `report_plan`, `report_rows`, `run_records`.
"""
