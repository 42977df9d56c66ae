"""The bus on etcd, version 3.

decides: `messages`, `protobuf`, `roles`.
acts: `shared_leases`.
touches the world: `connection`, `store`, `watch`.
"""
