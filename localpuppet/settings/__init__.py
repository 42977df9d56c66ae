"""Room `settings`; its map comes with the next commits."""
