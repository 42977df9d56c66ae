"""Access to the dashboard and the API: access rules, sessions, TLS, and listening sockets.

decides: `connections`, `loopback`, `rules`.
acts: `middleware`, `sessions`.
touches the world: `serving`, `socket_owner`, `tls`.
"""
