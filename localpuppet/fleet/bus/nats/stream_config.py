"""The configuration of the bus's JetStream streams, and keys as their subjects.

`/a/b.c` is `lp.a.b~c`: the components of a key become tokens, its dots become `~`, which no key
has. All other characters of keys are valid in tokens. Inventory and history have a separate stream,
and so another first token.
"""

from collections.abc import Mapping
from typing import Any

from localpuppet.base.value import Value
from localpuppet.fleet.bus.layout import CATALOGS, EXPORTS, HISTORY, INVENTORY, TOMBSTONES
from localpuppet.fleet.bus.servers import Servers


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


# Settings that localpuppet requires; an operator's own limits stay.
_NEEDED = ("allow_direct", "republish", "max_msgs_per_subject", "allow_msg_ttl")
# Settings that apply unless the operator has set them.
_DEFAULTS = ("consumer_limits",)
# Nanoseconds after which the server removes an unused consumer: the longest `timeout` of a bus.
# Otherwise a node could name years, and use up the server's consumers for all.
_UNUSED = 300 * 10**9


def stream_name(servers: Servers, place: SubjectRange) -> str:
    """Return the name of the stream of a place."""
    return servers.stream + place.suffix


def advisories(stream: str, event: str = "*") -> str:
    """Return the subject on which the server reports that a stream was `CREATED` or `DELETED`."""
    return f"$JS.EVENT.ADVISORY.STREAM.{event}.{stream}"


def wanted_stream(
    servers: Servers, place: SubjectRange, *, version: tuple[int, int]
) -> dict[str, Any]:
    """Return the configuration of the stream, in the fields of JetStream's API.

    Args:
        servers: Has its name, number of replicas, and maximum size: beyond it, the server rejects
            writes.
        place: The place of the stream.
        version: The first two numbers of the server's version.
    """
    config: dict[str, Any] = {
        "name": stream_name(servers, place),
        "subjects": [f"{place.kept}.>"],
        "storage": "file",
        "retention": "limits",
        "num_replicas": servers.replicas,
        "max_msgs_per_subject": 1,
        "max_bytes": servers.max_bytes,
        # A full stream rejects writes: the oldest value may still be in use.
        "discard": "new",
        "allow_direct": True,
        # The server republishes only stored messages, with their sequence: a rejected or lost
        # message is never reported, and clients that may write a key cannot forge one.
        "republish": {"src": f"{place.kept}.>", "dest": f"{place.live}.>"},
    }
    if version >= (2, 10):
        config["consumer_limits"] = {"inactive_threshold": _UNUSED}
    if version >= (2, 11):
        config["allow_msg_ttl"] = True
    return config


def mended_stream(config: Mapping[str, Any], wanted: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the configuration that an existing stream needs; `None` if it needs no change."""
    names = (*_NEEDED, *(key for key in _DEFAULTS if not config.get(key)))
    needed = {key: wanted[key] for key in names if key in wanted}
    if all(config.get(key) == value for key, value in needed.items()):
        return None
    return {**config, **needed}


def deliver_policy(after: int | None) -> dict[str, object]:
    """Return a consumer's policy: messages after a sequence, or else the last of each key."""
    if after is None:
        return {"deliver_policy": "last_per_subject"}
    return {"deliver_policy": "by_start_sequence", "opt_start_seq": after + 1}
