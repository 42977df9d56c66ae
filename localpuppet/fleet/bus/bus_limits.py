"""Limits of the bus: the one table for what other nodes and their operators may write there.

A reader counts before it unpacks or parses. Sizes are in bytes, times in seconds, lengths of names
and texts in characters.
"""

# -- the store: keys, values, listings --
MAX_KEY = 512
MAX_VALUE = 512 * 1024
# Keys and values of a whole listing.
MAX_LISTING = 64 * 1024 * 1024

# -- signed messages --
# The limit of a store; base64 enlarges the payload by a third.
MAX_TOKEN = MAX_VALUE
MAX_SIGNED_PAYLOAD = 360 * 1024
MAX_HEADER = 12 * 1024
MAX_SIGNATURE = 2 * 1024
MIN_RSA_BITS = 2048
# A signed trigger or request: 64 KiB of signed data in base64, and the signer.
MAX_ASKING = 128 * 1024
# A lease: its holder and its use.
MAX_LEASE = 4 * 1024
# A signed day of history.
MAX_HISTORY = 96 * 1024
MAX_TOMBSTONE = 16 * 1024

# -- triggers --
MAX_TRIGGER = 64 * 1024
MAX_TRIGGER_HOSTS = 1000
MAX_TRIGGER_TAGS = 100
# Receivers of one call or kick, and seconds for which the store keeps its triggers.
MAX_RECEIVERS = 10_000
MAX_LIFE = 86400
MAX_TRIGGER_TTL = 3600
MAX_HOPS = 8
MAX_CAUSE_FACTS = 16
MAX_CAUSE_QUERY = 200
MAX_CAUSE_REASON = 300
# How far the clock of a sender may be ahead.
MAX_SKEW = 30
MAX_WAITING_TRIGGERS = 20_000
MAX_WAITING_PATHS = 1_000
# Names and tags of waiting causes, of which each takes more than its characters; and the different
# tags that limit a run: Linux has a limit of 128 KiB for an argument, and two runs may be joined.
MAX_WAITING_TEXT = 16 * 1024 * 1024
WAITING_TEXT_HEAD = 50
MAX_WAITING_TAGS = 48 * 1024

# -- requests and replies --
MAX_REQUEST = 64 * 1024
MAX_REQUEST_TAGS = 64
MAX_REQUEST_LIFE = 300
MAX_REQUEST_AHEAD = 30
# The largest reply is the end of a log; signed and in base64 it must fit into a value on the bus.
MAX_REPLY = 320 * 1024
MAX_REPLY_ERROR = 900  # bytes
# A reference, or the name of a parameter, of a resource in a reply.
MAX_REPLY_NAME = 300
MAX_CHUNKS = 64
# Each noop run before a run is a separate step, in each epoch.
MAX_STEP = 1_000_000_000
MAX_EPOCH = 100_000
# The longest hold of a rollout without renewal. A running rollout needs minutes; a
# failed node can be held for a day, for an inspection.
MAX_HOLD = 86400.0
MAX_ASSIGNED_LAYERS = 100
# Layers and classes in JSON.
MAX_ASSIGNED_DATA = 32 * 1024
MAX_SERIAL = 2**53 - 1

# -- inventory entries --
# Base64 and the signature turn these bytes into up to 512 KiB.
MAX_PACKED_ENTRY = 360 * 1024
MAX_ENTRY = 4 * 1024 * 1024
MAX_ENTRY_VALUES = 100_000
MAX_ROLES = 64
MAX_CLASSES = 10_000
MAX_NODE_COMPONENTS = 256
MAX_NODE_CAPABILITIES = 64
MAX_COMPONENT_NAME = 255
MAX_SERVERS = 64
MAX_PORTS = 64
MAX_KICKS = 256
MAX_ENTRY_QUERIES = 256
MAX_KICK_PATHS = 32
# A trigger is rejected after 8 hops; this limits the work for a bad entry.
MAX_KICK_STEPS = 18

# -- exported resources, catalogs and captures --
MAX_PACKED_EXPORTS = 4 * 1024 * 1024
MAX_EXPORTS = 16 * 1024 * 1024
# Counted before parsing: a small JSON value takes much memory when parsed.
MAX_EXPORTED_VALUES = 400_000
MAX_EXPORTED_RESOURCES = 10_000
MAX_EXPORTED_RESOURCE = 256 * 1024
MAX_RESOURCE_TAGS = 256
MAX_RESOURCE_PARAMETERS = 500
MAX_RESOURCE_TYPE = 200
MAX_PACKED_CATALOG = 8 * 1024 * 1024
MAX_PACKED_CAPTURE = 4 * 1024 * 1024

# -- how a run ended, and presence --
MAX_RUN_TEXT = 256
MAX_RUN_COUNT = 1_000_000
MAX_PRESENCE_TEXT = 300
MAX_PRESENCE_HOLDS = 8
MAX_PRESENCE_ROLES = 16

# -- history --
# The time that reading takes depends on the number of values.
MAX_PACKED_DAY = 48 * 1024
MAX_UNPACKED_DAY = 1024 * 1024
MAX_DAY_RECORDS = 200
MAX_DAY_VALUES = 40_000
MAX_PACKED_SUMMARY = 8 * 1024
MAX_SUMMARY_RESOURCES = 100

# -- rollouts --
MAX_PACKED_CHECKPOINT = 320 * 1024
MAX_CHECKPOINT = 16 * 1024 * 1024
MAX_COMMAND = 4 * 1024
MAX_MACHINE = 253
MAX_ROLLOUT_EVENTS = 10_000_000

# -- what a server of the bus may send --
# An answer; etcd's own limit of a request bounds an entry to 1.5 MiB.
MAX_ETCD_ANSWER = 4 * 1024 * 1024
# Events of one message: an event of two bytes takes two hundred once it is read.
MAX_ETCD_EVENTS = 50_000
# An answer with the keys of a stream that is not crowded, each of up to `MAX_KEY` bytes. Values are
# counted before they are parsed: short ones take twenty times their size.
MAX_NATS_ANSWER = 4 * 1024 * 1024
MAX_NATS_KEYS = 7_000
MAX_NATS_VALUES = MAX_NATS_KEYS + 1_000
MAX_NATS_BATCH = 12 * 1024 * 1024
# A value, or an answer of JetStream.
MAX_NATS_MESSAGE = 4 * 1024 * 1024
# A line that is not a message, such as the server's INFO.
MAX_NATS_LINE = 256 * 1024
