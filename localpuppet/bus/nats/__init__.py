"""Room `bus/nats`; its map comes with the next commits."""
