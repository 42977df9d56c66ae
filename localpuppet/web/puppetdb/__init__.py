"""PuppetDB's query API, version 4, read-only: Puppetboard and other clients read the fleet.

It receives ports and plain values, as the dashboard does, and reads no settings.

acts: `answering`, `app`, `catalogs`, `metrics`.
touches the world: `bodies`.
inner packages: `reports`.
private: `api_errors`, `endpoints`, `questions`, `request_reading`, `turns`.
"""
