"""The inventory: signed entries that nodes publish about themselves, and who is online.

decides: `entry`, `facts`, `node_row`, `presence`, `run_end`, `summary`.
acts: `entry_publisher`, `admission`, `chunks`, `following`, `outbox`, `reading`, `tables`.
touches the world: `view`.
packages: `query`.
"""
