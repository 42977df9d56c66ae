"""Room `agent/split`; its map comes with the next commits."""
