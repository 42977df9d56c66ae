"""Wrap an inventory reader: replace one node's entry, or stop reading early."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.entry_brief import InventoryNode, UnpackedNode
from localpuppet.fleet.inventory.reading import Equal, InventoryReader, ResourceOffer

T = TypeVar("T")
Named = TypeVar("Named", InventoryEntry, InventoryNode)


class EnoughError(Exception):
    """The caller stopped the reading of a `BoundedReader`."""


class _Wrapped:
    """An `InventoryReader` that passes all calls to another one."""

    def __init__(self, reader: InventoryReader) -> None:
        self._reader = reader

    @property
    def revision(self) -> int:
        """Return the revision of the inventory."""
        return self._reader.revision

    def current_until(self) -> float | None:
        """Return when the inventory was last current."""
        return self._reader.current_until()

    def entries(self, equal: Equal | None = None) -> Iterator[InventoryEntry]:
        """Yield entries, sorted by name."""
        return self._reader.entries(equal)

    def nodes(self, equal: Equal | None = None) -> Iterator[InventoryNode]:
        """Yield the same as `entries`, not unpacked yet."""
        return self._reader.nodes(equal)

    def entry(self, node: NodeName) -> InventoryEntry | None:
        """Return the entry of a node."""
        return self._reader.entry(node)

    def exporting(self, kind: str | None) -> set[str]:
        """Return the nodes that export something."""
        return self._reader.exporting(kind)

    def exported(self, node: str, kind: str | None) -> Iterator[ResourceOffer]:
        """Yield a node's exports."""
        return self._reader.exported(node, kind)


class SubstitutedReader(_Wrapped):
    """An inventory with one replaced entry; the exports of this node are not replaced.

    Args:
        reader: The inventory.
        entry: The entry to return for its node.
    """

    def __init__(self, reader: InventoryReader, entry: InventoryEntry) -> None:
        super().__init__(reader)
        self._entry = entry

    def entries(self, equal: Equal | None = None) -> Iterator[InventoryEntry]:
        """Yield entries, sorted by name, including the replacement."""
        return _with(self._reader.entries(equal), self._entry)

    def nodes(self, equal: Equal | None = None) -> Iterator[InventoryNode]:
        """Yield the same as `entries`, not unpacked yet."""
        return _with(self._reader.nodes(equal), UnpackedNode(self._entry))

    def entry(self, node: NodeName) -> InventoryEntry | None:
        """Return the entry of a node."""
        return self._entry if node == self._entry.node else self._reader.entry(node)


class BoundedReader(_Wrapped):
    """An inventory that raises `EnoughError` to stop a long query.

    Args:
        reader: The inventory.
        enough: Returns whether to stop reading.
    """

    def __init__(self, reader: InventoryReader, enough: Callable[[], bool]) -> None:
        super().__init__(reader)
        self._enough = enough

    def entries(self, equal: Equal | None = None) -> Iterator[InventoryEntry]:
        """Yield entries, sorted by name; raise `EnoughError` to stop."""
        return self._until(self._reader.entries(equal))

    def nodes(self, equal: Equal | None = None) -> Iterator[InventoryNode]:
        """Yield the same as `entries`, not unpacked yet; raise `EnoughError` to stop."""
        return self._until(self._reader.nodes(equal))

    def _until(self, items: Iterator[T]) -> Iterator[T]:
        for item in items:
            if self._enough():
                raise EnoughError
            yield item


def _with(items: Iterator[Named], own: Named) -> Iterator[Named]:
    """Yield items sorted by name, with `own` in place of its node's item."""
    is_yielded = False
    for item in items:
        if not is_yielded and item.node >= own.node:
            is_yielded = True
            yield own
        if item.node != own.node:
            yield item
    if not is_yielded:
        yield own
