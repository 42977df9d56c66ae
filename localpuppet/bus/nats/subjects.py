"""Keys of the bus as NATS subjects, and back.

`/a/b.c` is `PREFIX.a.b~c`: a key's components become tokens, its dots become `~`, which no key
holds. Everything else that a key may hold, a token may hold, too.
"""

# The first token of the subjects that the stream keeps, and of those where the server repeats them.
PREFIX = "lp"
LIVE = "lp-live"
_TO_SUBJECT = str.maketrans({"/": ".", ".": "~"})
_TO_KEY = str.maketrans({".": "/", "~": "."})


def subject_of(prefix: str, key: str) -> str:
    """Return the subject of a key below `prefix` (`lp`)."""
    return prefix + key.translate(_TO_SUBJECT)


def subjects_below(prefix: str, keys: str) -> str:
    """Return the subject that stands for all keys below a prefix of keys (`/a/`)."""
    return subject_of(prefix, keys) + ">"


def key_of(prefix: str, subject: str) -> str:
    """Return the key of a subject below `prefix`."""
    return subject[len(prefix) :].translate(_TO_KEY)


def inbox_of(name: str) -> str:
    """Return the prefix of the subjects that answers to a node or a person come to."""
    return "_INBOX_" + name.translate(_TO_SUBJECT)
