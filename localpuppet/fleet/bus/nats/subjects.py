"""Keys of the bus as NATS subjects, and back.

`/a/b.c` is `lp.a.b~c`: a key's components become tokens, its dots become `~`, which no key
holds. Everything else that a key may hold, a token may hold, too. What nodes say of themselves has
a stream of its own, and so another first token.
"""

from dataclasses import dataclass

from localpuppet.fleet.bus.layout import EXPORTS, FORGOTTEN, INVENTORY


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A stream's part of the subjects.

    Attributes:
        kept: The first token of the subjects that the stream keeps.
        live: The first token of those where the server repeats them.
        suffix: What the stream's name ends with, behind the name that the site has set.
    """

    kept: str
    live: str
    suffix: str


# What passes: an operator may give this stream an age.
PASSING = Place(kept="lp", live="lp-live", suffix="")
# What stays until somebody says something newer: no age, and a limit of its own.
LASTING = Place(kept="lp-inventory", live="lp-inventory-live", suffix="-inventory")
PLACES = (PASSING, LASTING)
_LASTING = (INVENTORY, EXPORTS, FORGOTTEN)
_TO_SUBJECT = str.maketrans({"/": ".", ".": "~"})
_TO_KEY = str.maketrans({".": "/", "~": "."})


def place_of(key: str) -> Place:
    """Return the place of a key, or of a prefix of keys."""
    return LASTING if key.startswith(_LASTING) else PASSING


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
