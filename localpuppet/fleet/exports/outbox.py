"""Store this node's exports in `exports/offered/DIGEST` of the state directory.

- A file is written before the inventory's outbox names it, and kept while the outbox does.
- `exports/landed` records the slot and digest that the entry on the bus names.
"""

from collections.abc import Collection
from pathlib import Path

from localpuppet.base.errors import StateError
from localpuppet.base.machine.files import (
    disk_errors,
    list_names,
    make_private,
    remove,
    write_durably,
)
from localpuppet.fleet.exports.document import PackedResources, digest_of

DIRECTORY = Path("exports", "offered")
LANDED = Path("exports", "landed")


class ExportsOutbox:
    """The files of this node's exports below the state directory."""

    def __init__(self, state: Path) -> None:
        self._directory = state / DIRECTORY
        self._landed = state / LANDED

    def write(self, packed: PackedResources) -> None:
        """Write packed resources to the file of their digest."""
        path = self._directory / packed.digest
        if packed.count and not path.exists():
            make_private(self._directory)
            write_durably(path, packed.data)

    def read(self, digest: str) -> bytes:
        """Return packed resources; raise `StateError` if the file is missing or damaged."""
        path = self._directory / digest
        with disk_errors(path):
            data = path.read_bytes()
        if digest_of(data) != digest:
            raise StateError(
                "is damaged", where=str(path), hint="the next successful run rewrites it"
            )
        return data

    def note_landed(self, slot: str, digest: str) -> None:
        """Record the slot and the digest that the entry on the bus names."""
        write_durably(self._landed, f"{slot} {digest}".encode("ascii"))

    def landed(self) -> tuple[str, str] | None:
        """Return the recorded slot and digest; `None` if there is no readable record."""
        try:
            slot, _, digest = self._landed.read_text("ascii").partition(" ")
        except (OSError, ValueError):
            return None
        return slot, digest

    def keep(self, digests: Collection[str]) -> None:
        """Remove all files except those of `digests`."""
        for name in list_names(self._directory):
            if name not in digests:
                remove(self._directory / name)
