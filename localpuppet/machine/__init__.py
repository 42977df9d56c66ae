"""Room `machine`; its map comes with the next commits."""
