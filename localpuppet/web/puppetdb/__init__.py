"""PuppetDB's query API, version 4, read-only: Puppetboard and other clients read the fleet.

It receives ports and plain values, as the dashboard does, and reads no settings.

decides: `ports`.
acts: `answering`, `app`, `catalogs`.
touches the world: `bodies`.
inner packages: `reports`.
private: `answer_sharing`, `deadlines`, `endpoints`, `errors`, `metrics`, `parameters`, `questions`,
  `request_reading`, `turns`.
"""
