"""An inventory in memory."""

from collections.abc import Iterator, Sequence

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
