"""How the bus's JetStream streams are to be, and what is changed in one that is there."""

from collections.abc import Mapping
from typing import Any

from localpuppet.fleet.bus.nats.subjects import Place
from localpuppet.fleet.bus.servers import Servers

# What we cannot do without; an operator's own limits stay.
_NEEDED = ("allow_direct", "republish", "max_msgs_per_subject", "allow_msg_ttl")
# What is set where the operator has set nothing.
_DEFAULTS = ("consumer_limits",)
# Nanoseconds after which the server removes a consumer that no client uses: the longest `timeout`
# of a bus. Otherwise a node can name years, and make as many as the server allows for all.
_UNUSED = 300 * 10**9


def stream_name(servers: Servers, place: Place) -> str:
    """Return the name of the stream of a place."""
    return servers.stream + place.suffix


def wanted_stream(servers: Servers, place: Place, *, version: tuple[int, int]) -> dict[str, Any]:
    """Return the configuration of the stream, as JetStream's API names its fields.

    Args:
        servers: Says its name, how many servers keep it, and how large it may grow: beyond that,
            writes are refused.
        place: Which of the streams.
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
        # Full means "refused": the oldest value may be one that somebody counts on.
        "discard": "new",
        "allow_direct": True,
        # The server repeats what it has stored, with its sequence: a live message that was
        # refused or lost is never heard, and none can be forged by who may write a key.
        "republish": {"src": f"{place.kept}.>", "dest": f"{place.live}.>"},
    }
    if version >= (2, 10):
        config["consumer_limits"] = {"inactive_threshold": _UNUSED}
    if version >= (2, 11):
        config["allow_msg_ttl"] = True
    return config


def mended_stream(config: Mapping[str, Any], wanted: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the configuration to ask for in place of a stream's own; `None` to leave it."""
    names = (*_NEEDED, *(key for key in _DEFAULTS if not config.get(key)))
    needed = {key: wanted[key] for key in names if key in wanted}
    if all(config.get(key) == value for key, value in needed.items()):
        return None
    return {**config, **needed}


def deliver_policy(after: int | None) -> dict[str, object]:
    """Return which messages a consumer gets: those after a sequence, else the last of each key."""
    if after is None:
        return {"deliver_policy": "last_per_subject"}
    return {"deliver_policy": "by_start_sequence", "opt_start_seq": after + 1}
