"""Room `bus/etcd`; its map comes with the next commits."""
