"""A tombstone: somebody's signed word that what a node said before a time is forgotten.

Owns: the message and its strict reading. Refuses to know: who may write one (each view asks its own
policy for `forget`), and what is removed.
"""

import json
from dataclasses import dataclass

from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.bus.layout import MAX_TOMBSTONE

_WHERE = "tombstone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """One node that is forgotten.

    Attributes:
        node: The node.
        at: What it said until then is forgotten: seconds since 1970, UTC; an entry of a later run
            brings the node back.
    """

    node: NodeName
    at: float

    @classmethod
    def parse(cls, payload: bytes) -> "Tombstone":
        """Return the tombstone in a message.

        Raises:
            InvalidInputError: The bytes are not a tombstone.
        """
        fields = Fields.parse(payload, where=_WHERE, limit=MAX_TOMBSTONE)
        fields.only(("node", "at"))
        return cls(node=fields.parsed("node", NodeName.parse), at=fields.number("at"))

    def to_payload(self) -> bytes:
        """Return the bytes that are signed."""
        return json.dumps({"node": str(self.node), "at": self.at}).encode("ascii")
