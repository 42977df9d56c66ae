"""Room `bus/sqlite`; its map comes with the next commits."""
