"""Reports and events of PuppetDB's API, from the dashboard's memory.

decides: `event_counts`, `report_hash`.
acts: `details`, `report_views`.
private: `report_rows`.
"""
