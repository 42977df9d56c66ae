"""An inventory in memory."""

from collections.abc import Iterator, Sequence

from localpuppet.bus.key_value import KeyValue
from localpuppet.formats.names import NodeName
from localpuppet.inventory.entry import InventoryEntry
from localpuppet.inventory.reading import Equal


class MemoryInventory:
    """Entries in a list: an `InventoryReader` that leaves nothing out.

    Args:
        entries: The entries, sorted by the node's name.
        current: When they were last current; `None` for never.
    """

    def __init__(self, entries: Sequence[InventoryEntry], *, current: float | None = 0.0) -> None:
        self.listed = list(entries)
        self.current = current
        self.hints: list[Equal | None] = []

    @property
    def revision(self) -> int:
        return 7

    def current_until(self) -> float | None:
        return self.current

    def entries(self, equal: Equal | None = None) -> Iterator[InventoryEntry]:
        self.hints.append(equal)
        return iter(self.listed)

    def entry(self, node: NodeName) -> InventoryEntry | None:
        return next((entry for entry in self.listed if entry.node == node), None)


class NoBaggage:
    """A `Baggage` of a node that exports nothing."""

    async def bring(self, kv: KeyValue, entry: InventoryEntry, on_bus: str | None) -> None:
        return

    def landed(self, entry: InventoryEntry) -> None:
        return


class NoCompanion:
    """A `Companion` that keeps nothing; `dropped` are the nodes that went."""

    def __init__(self) -> None:
        self.dropped: list[str] = []

    def drop(self, node: str) -> None:
        self.dropped.append(node)

    async def update(self, kv: KeyValue) -> bool:
        return False
