"""Room `enc`; its map comes with the next commits."""
