"""Room `inventory`; its map comes with the next commits."""
