"""An inventory in memory."""

from collections.abc import Iterator, Mapping, Sequence

from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.entry_brief import InventoryNode, UnpackedNode
from localpuppet.fleet.inventory.reading import Equal, ResourceOffer


class MemoryInventory:
    """Entries in a list: an `InventoryReader` that returns all of them.

    Args:
        entries: The entries, sorted by the node's name.
        current: When they were last current; `None` for never.
        exports: What nodes export.
    """

    def __init__(
        self,
        entries: Sequence[InventoryEntry],
        *,
        current: float | None = 0.0,
        exports: Mapping[str, Sequence[ResourceOffer]] | None = None,
    ) -> None:
        self.listed = list(entries)
        self.current = current
        self.hints: list[Equal | None] = []
        self.exports = exports or {}

    @property
    def revision(self) -> int:
        return 7

    def current_until(self) -> float | None:
        return self.current

    def entries(self, equal: Equal | None = None) -> Iterator[InventoryEntry]:
        self.hints.append(equal)
        return iter(self.listed)

    def nodes(self, equal: Equal | None = None) -> Iterator[InventoryNode]:
        return map(UnpackedNode, self.entries(equal))

    def entry(self, node: NodeName) -> InventoryEntry | None:
        return next((entry for entry in self.listed if entry.node == node), None)

    def exporting(self, kind: str | None) -> set[str]:
        return {node for node in self.exports if list(self.exported(node, kind))}

    def exported(self, node: str, kind: str | None) -> Iterator[ResourceOffer]:
        return (one for one in self.exports.get(node, ()) if kind in (None, one.type))


class NoCompanion:
    """A `Companion` that keeps no data; `dropped` lists the nodes that left."""

    def __init__(self) -> None:
        self.dropped: list[str] = []

    def drop(self, node: str) -> None:
        self.dropped.append(node)

    async def update(self, kv: KeyValue) -> bool:
        return False
