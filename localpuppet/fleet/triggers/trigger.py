"""A trigger: the signed message by which one node makes others run.

It parses the fields strictly, raises `InvalidInputError` for any other message, and has one
canonical form: `Trigger.parse(trigger.to_payload()) == trigger`. The fields `hostname` and `hosts`
have the names of puppet-trigger. `triggers.admission` decides whether a trigger is accepted.
"""

from typing import Annotated, ClassVar

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName, parse_tag, parse_uuid
from localpuppet.base.formats.records import AllowedRange, Message

MAX_PAYLOAD = 64 * 1024
MAX_HOSTS = 1000
MAX_TAGS = 100
MAX_TTL = 3600
MAX_HOPS = 8

SCHEMA = 1


class Trigger(Message):
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
    WHERE: ClassVar = "trigger"
    LIMIT: ClassVar = MAX_PAYLOAD
    hostname: NodeName
    tags: Annotated[tuple[Annotated[str, parse_tag], ...], AllowedRange(maximum=MAX_TAGS)]
    hosts: Annotated[tuple[NodeName, ...], AllowedRange(maximum=MAX_HOSTS)]
    timestamp: int
    uuid: Annotated[str, parse_uuid]
    ttl: int
    hops: int
    # Longer paths are rejected by their hops; this bounds the work for a bad message.
    path: Annotated[tuple[NodeName, ...], AllowedRange(maximum=2 * (MAX_HOPS + 1))]

    def to_payload(self) -> bytes:
        """Return the bytes to sign and send.

        Raises:
            InvalidInputError: They are too large.
        """
        payload = super().to_payload()
        if len(payload) > MAX_PAYLOAD:
            raise InvalidInputError(
                f"is too large: {len(payload)} bytes, the limit is {MAX_PAYLOAD}",
                where=self.WHERE,
                hint=f"name fewer of the {len(self.hosts)} hosts at a time",
            )
        return payload
