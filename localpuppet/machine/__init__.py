"""This machine: files, locks, small databases, time, processes, sockets.

acts: `database`, `flock`, `guarded_command`.
touches the world: `cgroup`, `clock`, `files`, `processes`, `service_manager`, `unix_socket`.
ports: `ports`.
"""
