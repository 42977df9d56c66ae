"""The inventory: signed entries that nodes publish about themselves, and who is online.

decides: `arrived`, `awaited`, `brief`, `claims`, `component`, `entry`, `facts`, `index`,
    `presence`, `reading`, `server`, `summary`, `tombstone`.
acts: `admission`, `following`, `outbox`, `presence_following`, `publishing`, `written`.
touches the world: `stored`, `view`.
packages: `query`.
"""
