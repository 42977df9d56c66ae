"""The store that nodes share: a port of a few verbs over keys, and the engines behind it.

A call to a server raises `UnavailableError` if no server answers within the deadline, the
connection is lost, or the server denies access.

decides: `bus_limits`, `jetstream_messages`, `layout`, `permissions`, `servers`.
touches the world: `etcd_bus`, `nats_bus`, `proxy`, `sqlite_bus`.
ports: `key_value`.
acts: `store_calls`.
private: `etcd_calls`, `etcd_messages`, `jetstream`,
  `nats_client`, `nats_link`, `sqlite_file`.
"""
