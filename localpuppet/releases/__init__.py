"""Room `releases`; its map comes with the next commits."""
