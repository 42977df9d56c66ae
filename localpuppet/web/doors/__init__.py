"""Access to the dashboard: access rules, sessions, TLS, and listening sockets.

decides: `crowd`, `loopback`, `people`, `rules`.
acts: `sessions`.
touches the world: `listening`, `serving`, `tls`.
"""
