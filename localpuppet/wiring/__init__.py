"""Room `wiring`; its map comes with the next commits."""
