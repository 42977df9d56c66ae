"""The inventory: signed entries that nodes publish about themselves, and who is online.

decides: `awaited_entry`, `component`, `entry_brief`, `entry`, `facts`, `index`, `presence`,
    `reading`, `server`, `summary`, `tombstone`.
acts: `admission`, `following`, `outbox`, `presence_following`, `publishing`.
touches the world: `view`.
packages: `query`.
private: `claims`, `received_entry`, `stored`, `text_cache`.
"""
