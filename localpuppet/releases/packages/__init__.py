"""Room `releases/packages`; its map comes with the next commits."""
