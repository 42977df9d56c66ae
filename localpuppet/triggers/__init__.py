"""Room `triggers`; its map comes with the next commits."""
