"""Who is there, and what the nodes say of themselves.

decides: `arrived`, `claims`, `entry`, `facts`, `index`, `presence`, `reading`, `server`,
    `summary`, `tombstone`.
acts: `admission`, `following`, `outbox`, `presence_following`, `publishing`.
touches the world: `view`.
inner rooms: `query`.
"""
