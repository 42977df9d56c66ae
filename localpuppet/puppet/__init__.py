"""Room `puppet`; its map comes with the next commits."""
