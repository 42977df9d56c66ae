"""Room `trust`; its map comes with the next commits."""
