"""PuppetDB's query API, version 4, read-only: Puppetboard and other clients read the fleet.

It receives ports and plain values, as the dashboard does, and reads no settings.

acts: `app`, `answers`, `answering`, `catalogs`.
reports: `report_rows`, `report_views`.
private: `api_requests`, `event_counts`.
"""
