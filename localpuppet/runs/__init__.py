"""Room `runs`; its map comes with the next commits."""
