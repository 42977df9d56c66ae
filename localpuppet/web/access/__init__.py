"""Access to the dashboard: access rules, sessions, TLS, and listening sockets.

decides: `certificates`, `connections`, `loopback`, `rules`.
acts: `sessions`.
touches the world: `listening`, `serving`, `tls`.
"""
