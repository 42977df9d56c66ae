"""Wrap an inventory reader: replace one node's entry, or stop reading early."""

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager

from localpuppet.base.formats.names import NodeName
from localpuppet.base.machine.sqlite import Connection
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.reading import InventoryReader
from localpuppet.fleet.inventory.tables import EntryRows, NodeBrief, briefs


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

    def entries(self) -> Iterator[InventoryEntry]:
        """Yield entries, sorted by name."""
        return self._reader.entries()

    def entry(self, node: NodeName) -> InventoryEntry | None:
        """Return the entry of a node."""
        return self._reader.entry(node)

    def nodes(self, names: Collection[str] | None = None) -> Iterator[NodeBrief]:
        """Yield the same nodes as `entries` without their facts."""
        with self.rows() as connection:
            yield from briefs(connection, names)

    def rows(
        self, own: EntryRows | None = None, *, exports: bool = False
    ) -> AbstractContextManager[Connection]:
        """Lend the rows of one moment."""
        return self._reader.rows(own, exports=exports)

    def check(self) -> None:
        """End a question early by an error."""
        self._reader.check()


class SubstitutedReader(_Wrapped):
    """An inventory with one replaced entry; the exports of this node are not replaced.

    Args:
        reader: The inventory.
        entry: The entry to return for its node.
    """

    def __init__(self, reader: InventoryReader, entry: InventoryEntry) -> None:
        super().__init__(reader)
        self._entry = entry

    def entries(self) -> Iterator[InventoryEntry]:
        """Yield entries, sorted by name, including the replacement."""
        return _with(self._reader.entries(), self._entry)

    def rows(
        self, own: EntryRows | None = None, *, exports: bool = False
    ) -> AbstractContextManager[Connection]:
        """Lend the rows of one moment, including the replacement."""
        return self._reader.rows(own or EntryRows.of(self._entry), exports=exports)

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

    def check(self) -> None:
        """Raise `EnoughError` to stop."""
        if self._enough():
            raise EnoughError


def _with(items: Iterator[InventoryEntry], own: InventoryEntry) -> Iterator[InventoryEntry]:
    """Yield entries sorted by name, with `own` in place of its node's entry."""
    is_yielded = False
    for item in items:
        if not is_yielded and item.node >= own.node:
            is_yielded = True
            yield own
        if item.node != own.node:
            yield item
    if not is_yielded:
        yield own
