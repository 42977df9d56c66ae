"""Who is there, and what the nodes say of themselves.

decides: `arrived`, `brief`, `claims`, `component`, `entry`, `facts`, `index`, `presence`,
    `reading`, `server`, `summary`, `tombstone`.
acts: `admission`, `following`, `outbox`, `presence_following`, `publishing`, `written`.
touches the world: `stored`, `view`.
inner rooms: `query`.
"""
