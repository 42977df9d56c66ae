"""The bus on etcd, version 3.

decides: `roles`.
touches the world: `store`.
private: `connection`, `messages`, `watch`.
"""
