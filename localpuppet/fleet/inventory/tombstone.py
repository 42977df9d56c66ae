"""A tombstone: a signed message that a node's entries before a time are forgotten.

- Each view checks the signer's right to `forget` with its own policy.
"""

import json
from dataclasses import dataclass, field
from typing import ClassVar

from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.json_form import JsonForm, parsed, read_by
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.bus.layout import MAX_TOMBSTONE

_WHERE = "tombstone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone(JsonForm):
    """A forgotten node.

    Attributes:
        node: The node.
        at: Entries up to this time are forgotten, in seconds since 1970, UTC; a later entry brings
            the node back.
    """

    SCHEMA: ClassVar = 1
    node: NodeName = field(metadata=parsed(NodeName.parse))
    at: float = field(metadata=read_by(Fields.number))

    @classmethod
    def parse(cls, payload: bytes) -> "Tombstone":
        """Read the tombstone in a message.

        Raises:
            InvalidInputError: The bytes are not a tombstone.
        """
        return cls.read(Fields.parse(payload, where=_WHERE, limit=MAX_TOMBSTONE))

    def to_payload(self) -> bytes:
        """Return the bytes to sign."""
        return json.dumps(self.to_dict()).encode("ascii")
