"""The inventory: signed entries that nodes publish about themselves, and who is online.

decides: `awaited_entry`, `component`, `entry`, `facts`, `node_row`, `presence`, `run_end`,
  `server`, `summary`, `timetable`, `tombstone`.
acts: `admission`, `chunks`, `following`, `outbox`, `presence_following`, `publishing`, `reading`,
  `tables`.
touches the world: `view`.
packages: `query`.
private: `claims`.
"""
