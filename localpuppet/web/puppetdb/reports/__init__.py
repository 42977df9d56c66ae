"""Reports, events and population metrics of PuppetDB's API, from the dashboard's memory.

decides: `event_counts`, `report_hash`.
acts: `details`, `population`, `run_records`.
private: `missing_reports`, `report_plan`, `report_rows`.
"""
