"""Room `agent`; its map comes with the next commits."""
