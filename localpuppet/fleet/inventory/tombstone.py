"""A tombstone: a signed message that a node's entries before a time are forgotten.

- Each view checks the signer's right to `forget` with its own policy.
"""

import json
from dataclasses import dataclass

from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.bus.layout import MAX_TOMBSTONE

_WHERE = "tombstone"
SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """A forgotten node.

    Attributes:
        node: The node.
        at: Entries up to this time are forgotten, in seconds since 1970, UTC; a later entry brings
            the node back.
    """

    node: NodeName
    at: float

    @classmethod
    def parse(cls, payload: bytes) -> "Tombstone":
        """Read the tombstone in a message.

        Raises:
            InvalidInputError: The bytes are not a tombstone.
        """
        fields = Fields.parse(payload, where=_WHERE, limit=MAX_TOMBSTONE)
        fields.schema(SCHEMA)
        fields.only(("schema", "node", "at"))
        return cls(node=fields.parsed("node", NodeName.parse), at=fields.number("at"))

    def to_payload(self) -> bytes:
        """Return the bytes to sign."""
        return json.dumps({"schema": SCHEMA, "node": self.node, "at": self.at}).encode("ascii")
