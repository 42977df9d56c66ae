"""How the bus's JetStream stream is to be configured, and what is changed in one that is there."""

from collections.abc import Mapping
from typing import Any

from localpuppet.bus.nats.subjects import LIVE, PREFIX
from localpuppet.bus.servers import Servers

# What we cannot do without; an operator's own limits stay.
_NEEDED = ("allow_direct", "republish", "max_msgs_per_subject", "allow_msg_ttl")


def wanted_stream(servers: Servers, *, version: tuple[int, int]) -> dict[str, Any]:
    """Return the configuration of the stream, as JetStream's API names its fields.

    Args:
        servers: Says its name, how many servers keep it, and how large it may grow: beyond that,
            writes are refused.
        version: The first two numbers of the server's version.
    """
    config: dict[str, Any] = {
        "name": servers.stream,
        "subjects": [f"{PREFIX}.>"],
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
        "republish": {"src": f"{PREFIX}.>", "dest": f"{LIVE}.>"},
    }
    if version >= (2, 11):
        config["allow_msg_ttl"] = True
    return config


def mended_stream(config: Mapping[str, Any], wanted: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the configuration to ask for in place of a stream's own; `None` to leave it."""
    needed = {key: wanted[key] for key in _NEEDED if key in wanted}
    if all(config.get(key) == value for key, value in needed.items()):
        return None
    return {**config, **needed}
