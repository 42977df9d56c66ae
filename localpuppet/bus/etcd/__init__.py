"""The bus on etcd, version 3.

decides: `messages`, `protobuf`, `roles`.
touches the world: `connection`, `store`, `watch`.
"""
