"""Who is there, and what the nodes say of themselves.

decides: `arrived`, `awaited`, `brief`, `claims`, `component`, `entry`, `facts`, `index`,
    `presence`, `reading`, `server`, `summary`, `tombstone`.
acts: `admission`, `following`, `outbox`, `presence_following`, `publishing`, `written`.
touches the world: `stored`, `view`.
inner rooms: `query`.
"""
