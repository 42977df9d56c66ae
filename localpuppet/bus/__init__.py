"""Room `bus`; its map comes with the next commits."""
