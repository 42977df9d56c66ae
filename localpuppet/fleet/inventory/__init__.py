"""The inventory: signed entries that nodes publish about themselves, and who is online.

decides: `awaited_entry`, `claims`, `component`, `entry_brief`, `entry`, `facts`, `index`,
    `presence`, `reading`, `received_entry`, `server`, `summary`, `tombstone`.
acts: `admission`, `following`, `outbox`, `presence_following`, `publishing`, `text_cache`.
touches the world: `stored`, `view`.
packages: `query`.
"""
