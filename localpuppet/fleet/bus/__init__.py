"""The store that nodes share: a port of a few verbs over keys, and the engines behind it.

A call to a server raises `UnavailableError` if no server answers within the deadline, the
connection is lost, or the server denies access.

decides: `layout`, `roster`, `servers`.
acts: `deadline`, `outage`, `tls_failure`.
ports: `key_value`.
inner packages: `etcd`, `nats`, `proxy`, `sqlite`.
private: `checked_store`, `client_sockets`.
"""
