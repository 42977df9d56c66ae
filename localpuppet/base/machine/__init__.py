"""Use this machine: files, locks, small databases, time, processes, sockets.

acts: `flock`, `guarded_command`, `isolation`, `waiting`.
touches the world: `anchors`, `child`, `files`, `fork_server`, `open_tree`, `own_program`,
  `process_table`, `processes`, `service_manager`, `sqlite`, `unix_socket`.
ports: `ports`.
"""
