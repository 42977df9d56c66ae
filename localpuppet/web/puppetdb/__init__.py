"""PuppetDB's query API, version 4, read-only: Puppetboard and other clients read the fleet.

It receives ports and plain values, as the dashboard does, and reads no settings.

acts: `api_errors`, `answering`, `app`, `catalogs`, `metrics`.
touches the world: `bodies`.
inner packages: `reports`.
private: `endpoints`, `questions`, `request_reading`, `turns`.
"""
