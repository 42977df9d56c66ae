"""A trigger: the signed message by which one node makes others run.

It parses the fields strictly, raises `InvalidInputError` for any other message, and has one
canonical form: `Trigger.parse(trigger.to_payload()) == trigger`. The fields `hostname` and `hosts`
have the names of puppet-trigger. `triggers.admission` decides whether a trigger is accepted.
"""

import json
from dataclasses import dataclass, field
from typing import ClassVar

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.json_form import JsonForm, integer, parsed, parsed_list
from localpuppet.base.formats.names import NodeName, parse_tag, parse_uuid

MAX_PAYLOAD = 64 * 1024
MAX_HOSTS = 1000
MAX_TAGS = 100
MAX_TTL = 3600
MAX_HOPS = 8

_WHERE = "trigger"
SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger(JsonForm):
    """A trigger as sent: its types are valid, and nothing else is verified.

    Attributes:
        hostname: The node that sent it.
        tags: Tags of the resource that sent it, or the operator's words; they limit no run.
        hosts: The nodes that are to run.
        timestamp: When it was sent, by the sender's clock: seconds since 1970, UTC.
        uuid: Its id, the same for all receivers, canonical and in lower case.
        ttl: Seconds after `timestamp` for which it may be accepted.
        hops: Number of nodes that forwarded it before the sender: `len(path) - 1`.
        path: The nodes along which it came, the first cause first, the sender last.
    """

    SCHEMA: ClassVar = SCHEMA
    hostname: NodeName = field(metadata=parsed(NodeName.parse))
    tags: tuple[str, ...] = field(metadata=parsed_list(parse_tag, maximum=MAX_TAGS))
    hosts: tuple[NodeName, ...] = field(metadata=parsed_list(NodeName.parse, maximum=MAX_HOSTS))
    timestamp: int = field(metadata=integer())
    uuid: str = field(metadata=parsed(parse_uuid))
    ttl: int = field(metadata=integer())
    hops: int = field(metadata=integer())
    # Longer paths are rejected by their hops; this bounds the work for a bad message.
    path: tuple[NodeName, ...] = field(
        metadata=parsed_list(NodeName.parse, maximum=2 * (MAX_HOPS + 1))
    )

    @classmethod
    def parse(cls, payload: bytes) -> "Trigger":
        """Return the trigger in a message.

        Args:
            payload: JSON, at most 64 KiB; `strict_json` says what is rejected.
        """
        return cls.read(Fields.parse(payload, where=_WHERE, limit=MAX_PAYLOAD))

    def to_payload(self) -> bytes:
        """Return the bytes to sign and send: ASCII JSON without white space."""
        payload = json.dumps(self.to_dict(), separators=(",", ":")).encode("ascii")
        if len(payload) > MAX_PAYLOAD:
            raise InvalidInputError(
                f"is too large: {len(payload)} bytes, the limit is {MAX_PAYLOAD}",
                where=_WHERE,
                hint=f"name fewer of the {len(self.hosts)} hosts at a time",
            )
        return payload
