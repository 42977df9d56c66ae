"""Use this machine: files, locks, small databases, time, processes, sockets.

acts: `confinement`, `database`, `flock`, `guarded_command`, `isolation`, `reloaded_files`,
  `waiting`.
touches the world: `anchors`, `child`, `clock`, `extras`, `files`, `fork_server`, `heap`,
  `kept_process`, `open_tree`, `own_program`, `ownership`, `process_table`, `processes`,
  `server_selector`, `service_manager`, `sqlite`, `system_log`, `unix_socket`.
ports: `ports`.
"""
