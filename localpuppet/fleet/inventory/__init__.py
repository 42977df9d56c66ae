"""The inventory: signed entries that nodes publish about themselves, and who is online.

decides: `entry`, `facts`, `presence`, `run_end`.
acts: `entry_publisher`, `admission`, `chunks`, `following`, `outbox`, `reading`, `tables`.
touches the world: `view`.
packages: `query`.
"""
