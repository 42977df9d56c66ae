"""Room `leases`; its map comes with the next commits."""
