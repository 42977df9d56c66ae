"""The store that nodes share: a port of a few verbs over keys, and the engines behind it.

A call to a server raises `UnavailableError` if no server answers within the deadline, the
connection is lost, or the server denies access.

decides: `grants`, `layout`, `roster`, `servers`.
acts: `backoff`, `checked_store`, `deadline`, `outage`.
touches the world: `client_sockets`.
ports: `key_value`.
inner rooms: `etcd`, `nats`, `proxy`, `sqlite`.
"""
