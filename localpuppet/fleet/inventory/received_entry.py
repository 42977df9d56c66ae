"""Two values: an entry as it came from the bus, and what the view's tables keep of it."""

from dataclasses import dataclass

from localpuppet.fleet.inventory.admission import EntryRefusal
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.tables import EntryRows


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedEntry:
    """An entry from the bus.

    Attributes:
        node: The node at whose key it is.
        token: The message.
        found: The entry, or why it was rejected.
        revision: The bus's revision of it.
    """

    node: str
    token: bytes
    found: InventoryEntry | EntryRefusal
    revision: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEntry:
    """The stored part of an entry; a hundred unpacked entries would fill the memory.

    Attributes:
        node: The node.
        token: The message on the bus.
        refusal: Why it was rejected; `None` if it was accepted.
        at: When the node published it, in seconds since 1970, UTC.
        revision: The bus's revision of it.
        rows: What queries see; `None` for a rejected entry.
    """

    node: str
    token: bytes
    refusal: str | None = None
    at: float = 0.0
    revision: int = 0
    rows: EntryRows | None = None

    @classmethod
    def of(cls, entry: ReceivedEntry) -> "StoredEntry":
        """Return the stored part of an entry."""
        node, token, content = entry.node, entry.token, entry.found
        if isinstance(content, EntryRefusal):
            return cls(node=node, token=token, refusal=content.reason)
        return cls(
            node=node,
            token=token,
            at=content.at,
            revision=entry.revision,
            rows=EntryRows.of(content),
        )
