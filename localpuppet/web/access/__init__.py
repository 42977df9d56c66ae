"""Access to the dashboard and the API: access rules, sessions, TLS, and listening sockets.

decides: `http_limits`, `rules`.
touches the world: `serving`.
"""
