"""Room `formats`; its map comes with the next commits."""
