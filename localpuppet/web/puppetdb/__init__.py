"""PuppetDB's query API, version 4, read-only: Puppetboard and other clients read the fleet.

It receives ports and plain values, as the dashboard does, and reads no settings.

acts: `api_requests`, `app`, `answers`, `answering`, `catalogs`, `metrics`.
reports: `report_views`, `report_rows`, `report_details`, `event_counts`.
"""
