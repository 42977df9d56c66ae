"""A tombstone: a signed message that a node's entries before a time are forgotten.

- Each view checks the signer's right to `forget` with its own policy.
"""

from typing import ClassVar

from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.records import Message
from localpuppet.fleet.bus.layout import MAX_TOMBSTONE


class Tombstone(Message):
    """A forgotten node.

    Attributes:
        node: The node.
        at: Entries up to this time are forgotten, in seconds since 1970, UTC; a later entry brings
            the node back.
    """

    SCHEMA: ClassVar = 1
    WHERE: ClassVar = "tombstone"
    LIMIT: ClassVar = MAX_TOMBSTONE
    node: NodeName
    at: float
