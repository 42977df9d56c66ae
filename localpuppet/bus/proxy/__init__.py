"""Room `bus/proxy`; its map comes with the next commits."""
