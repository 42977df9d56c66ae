"""An inventory of entries that tests make: a view in a temporary file."""

import base64
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.exports.held import HeldExports
from localpuppet.fleet.exports.resource import ExportedResource
from localpuppet.fleet.inventory.admission import ReceivedEntry
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.tables import EntryRows
from localpuppet.fleet.inventory.view import View

# Where a write need not wait for a disk; `None` for the usual place.
IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None


class MemoryInventory(View):
    """A view of some entries, with unsigned messages."""

    def __init__(
        self,
        entries: Sequence[InventoryEntry],
        *,
        current: float | None = 0.0,
        exports: Mapping[str, Sequence[ExportedResource]] | None = None,
    ) -> None:
        directory = Path(tempfile.mkdtemp(prefix="localpuppet-inventory-", dir=IN_MEMORY))
        weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)
        held = HeldExports(directory / "held.sqlite")
        for node, resources in (exports or {}).items():
            held.hold(node, "1", resources)
        super().__init__(directory / "view.sqlite", now=lambda: 0.0, exports=held)
        self.listed: list[InventoryEntry] = []
        self.current = current
        self.add(*entries)

    def add(self, *entries: InventoryEntry) -> None:
        """Add entries, whose names are the last."""
        self.listed += entries
        received = [
            ReceivedEntry(node=str(one.node), token=_message(one), found=EntryRows.of(one))
            for one in entries
        ]
        self.take(received, revision=7)

    def replace(self, *entries: InventoryEntry) -> None:
        """Have these entries only."""
        self._database.remove()
        self.listed.clear()
        self.add(*sorted(entries, key=lambda one: one.node))

    def current_until(self) -> float | None:
        return self.current

    def entries(self) -> Iterator[InventoryEntry]:
        return iter(self.listed)


def _message(entry: InventoryEntry) -> bytes:
    payload = base64.urlsafe_b64encode(entry.to_payload()).rstrip(b"=")
    return b"e30." + payload + b"."


class NoCompanion:
    """A `Companion` that keeps no data; `dropped` lists the nodes that left."""

    def __init__(self) -> None:
        self.dropped: list[str] = []

    def drop(self, node: str) -> None:
        self.dropped.append(node)

    async def update(self, kv: KeyValue) -> bool:
        return False
