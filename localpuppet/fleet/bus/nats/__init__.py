"""The bus on NATS JetStream.

decides: `permissions`, `subjects`.
touches the world: `store`.
private: `api`, `client`, `connection`, `feed`, `link`, `message`, `sequence_history`, `stream`,
  `stream_config`.
"""
