"""Access to the dashboard and the API: access rules, sessions, TLS, and listening sockets.

decides: `http_limits`, `loopback`, `rules`.
touches the world: `serving`, `tls`.
"""
