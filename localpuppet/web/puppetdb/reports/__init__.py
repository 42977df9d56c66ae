"""Reports, events and population metrics of PuppetDB's API, from the dashboard's memory.

decides: `event_counts`, `report_hash`.
acts: `details`, `population`, `report_views`.
private: `missing_reports`, `report_rows`.
"""
