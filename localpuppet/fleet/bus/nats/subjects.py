"""Keys of the bus as NATS subjects, and back.

`/a/b.c` is `lp.a.b~c`: the components of a key become tokens, its dots become `~`, which no key
has. All other characters of keys are valid in tokens. Inventory and history have a separate stream,
and so another first token.
"""

from localpuppet.base.value import Value
from localpuppet.fleet.bus.layout import CATALOGS, EXPORTS, HISTORY, INVENTORY, TOMBSTONES


class SubjectRange(Value):
    """A stream's part of the subjects.

    Attributes:
        kept: The first token of the subjects that the stream stores.
        live: The first token of the subjects for republished messages.
        suffix: The end of the stream's name, after the name in the settings.
    """

    kept: str
    live: str
    suffix: str


# Transient keys: an operator may set a maximum age for this stream.
PASSING = SubjectRange(kept="lp", live="lp-live", suffix="")
# Lasting keys, until a newer value: no maximum age, and a separate size limit.
LASTING = SubjectRange(kept="lp-inventory", live="lp-inventory-live", suffix="-inventory")
PLACES = (PASSING, LASTING)
_LASTING = (INVENTORY, EXPORTS, CATALOGS, HISTORY, TOMBSTONES)
_TO_SUBJECT = str.maketrans({"/": ".", ".": "~"})
_TO_KEY = str.maketrans({".": "/", "~": "."})


def place_of(key: str) -> SubjectRange:
    """Return the place of a key, or of a prefix of keys."""
    return LASTING if key.startswith(_LASTING) else PASSING


def subject_of(prefix: str, key: str) -> str:
    """Return the subject of a key below `prefix` (`lp`)."""
    return prefix + key.translate(_TO_SUBJECT)


def subjects_below(prefix: str, keys: str) -> str:
    """Return the subject that matches all keys below a prefix of keys (`/a/`)."""
    return subject_of(prefix, keys) + ">"


def key_of(prefix: str, subject: str) -> str:
    """Return the key of a subject below `prefix`."""
    return subject[len(prefix) :].translate(_TO_KEY)


def inbox_of(name: str) -> str:
    """Return the prefix of the subjects for answers to a node or a person."""
    return "_INBOX_" + name.translate(_TO_SUBJECT)
