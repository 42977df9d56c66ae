"""Who is there, and what the nodes say of themselves.

decides: `arrived`, `brief`, `claims`, `entry`, `facts`, `index`, `presence`, `reading`, `server`,
    `summary`, `tombstone`.
acts: `admission`, `following`, `outbox`, `presence_following`, `publishing`, `written`.
touches the world: `stored`, `view`.
inner rooms: `query`.
"""
