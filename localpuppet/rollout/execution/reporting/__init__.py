"""A rollout in the words and bars that people read, and its report as an HTML file.

decides: `report_page`, `view`.
"""
