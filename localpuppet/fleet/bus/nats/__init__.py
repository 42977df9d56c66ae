"""The bus on NATS JetStream.

decides: `message`, `permissions`, `stream_config`, `subjects`.
acts: `api`, `feed`, `sequence_history`.
touches the world: `client`, `connection`, `link`, `store`, `stream`.
"""
