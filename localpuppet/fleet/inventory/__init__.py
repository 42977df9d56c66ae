"""The inventory: signed entries that nodes publish about themselves, and who is online.

decides: `awaited_entry`, `component`, `entry_brief`, `entry`, `facts`, `index`, `node_row`,
    `presence`, `reading`, `run_kind`, `server`, `summary`, `timetable`, `tombstone`.
acts: `admission`, `chunks`, `following`, `outbox`, `presence_following`, `publishing`.
touches the world: `view`.
packages: `query`.
private: `claims`, `received_entry`, `stored`, `text_cache`.
"""
