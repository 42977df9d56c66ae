"""The bus on NATS JetStream.

decides: `permissions`.
touches the world: `store`, `stream_config`.
private: `api`, `client`, `connection`, `feed`, `link`, `stream`.
"""
