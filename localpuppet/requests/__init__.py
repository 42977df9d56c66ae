"""Room `requests`; its map comes with the next commits."""
