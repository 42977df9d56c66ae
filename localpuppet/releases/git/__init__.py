"""Room `releases/git`; its map comes with the next commits."""
