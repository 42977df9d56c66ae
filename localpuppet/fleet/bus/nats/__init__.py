"""The bus on NATS JetStream.

decides: `message`, `permissions`, `stream_config`, `subjects`.
acts: `api`, `feed`, `memory`.
touches the world: `client`, `connection`, `link`, `store`, `stream`.
"""
