"""Limits of HTTP: the one table for what browsers and other programs may send.

Sizes are in bytes, lengths in characters.
"""

# -- connections, requests, sessions --
# At once, of all clients and of one.
MAX_CONNECTIONS = 600
MAX_CONNECTIONS_OF_ONE = 60
# The head of a request.
MAX_HEAD = 16 * 1024
# The oldest is forgotten for a new one.
MAX_SESSIONS = 32
MAX_TOKENS = 256
# Cookies of the dashboard's name that are checked: services on other ports may set some.
MAX_COOKIES = 8

# -- the dashboard --
MAX_PAGE = 100_000
MAX_LIST_WORDS = 1000
# A node's name has at most as many.
MAX_SEARCH_TEXT = 253
MAX_ACTION_NODES = 500
MAX_STREAMS = 300

# -- the PuppetDB API --
# The body of a request, and bodies at once.
MAX_BODY = 512 * 1024
MAX_BODIES = 32
MAX_NAMED_CATALOGS = 16

# -- deliveries of git hosts --
# The body of one; one for a tag has some kilobytes, one for a thousand commits a megabyte.
MAX_DELIVERY = 1024 * 1024
# Those that are known again; one that was forgotten costs a look.
MAX_DELIVERIES = 1024
