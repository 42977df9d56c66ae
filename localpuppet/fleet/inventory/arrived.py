"""An entry that came from the bus, and what the view's tables keep of it.

Owns: the two values. Refuses to know: SQL, and which entries count.
"""

from dataclasses import dataclass

from localpuppet.fleet.inventory.admission import Refusal
from localpuppet.fleet.inventory.brief import Brief, WholeNode
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.index import words_of
from localpuppet.fleet.inventory.query.node_facts import NodeFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """An entry that came from the bus.

    Attributes:
        node: At whose key it stands.
        token: As it stands there.
        found: What it says, or why it does not count.
        revision: The bus's revision of it.
    """

    node: str
    token: bytes
    found: InventoryEntry | Refusal
    revision: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What the tables keep of it: unpacked, a hundred entries fill the memory.

    Attributes:
        node: The node.
        token: As it stands on the bus.
        refusal: Why it does not count; `None` where it does.
        at: When the node said it: seconds since 1970, UTC.
        revision: The bus's revision of it.
        words: By what it is found: paths and words.
        brief: What is told of the node without the entry; `None` where it does not count.
    """

    node: str
    token: bytes
    refusal: str | None = None
    at: float = 0.0
    revision: int = 0
    words: tuple[tuple[str, str], ...] = ()
    brief: Brief | None = None

    @classmethod
    def of(cls, one: Arrived) -> "Kept":
        """Return what is kept of an entry."""
        node, token, found = one.node, one.token, one.found
        if isinstance(found, Refusal):
            return cls(node=node, token=token, refusal=found.reason)
        return cls(
            node=node,
            token=token,
            at=found.at,
            revision=one.revision,
            words=tuple(words_of(found)),
            brief=Brief.of(found, NodeFacts(WholeNode(found)).told()),
        )
