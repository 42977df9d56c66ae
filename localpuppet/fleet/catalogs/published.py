"""Read the catalogs that other nodes publish (`inventory.catalogs`), and cache them on disk.

- Catalogs are fetched when a query needs them, and not followed: most readers of the inventory need
  none. A fetched catalog is used until the node's entry names another digest.
- `catalogs/read/NODE` in the state directory is the digest and the packed catalog; all together
  have at most `MAX_CACHED` bytes. The digest is verified with each read.
- What no entry names any longer is removed, also that of a forgotten node.
"""

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from localpuppet.base.formats.names import NodeName
from localpuppet.base.machine.files import (
    disk_errors,
    list_names,
    make_private,
    remove,
    replace_file,
)
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.bus.layout import catalogs_of
from localpuppet.fleet.catalogs.document import MAX_PACKED, CatalogHeader
from localpuppet.fleet.inventory.chunks import chunk_value, digest_of, fetch_chunks
from localpuppet.fleet.inventory.entry import CatalogSummary, InventoryEntry

MAX_CACHED = 1024 * 1024 * 1024


def published_header(entry: InventoryEntry, summary: CatalogSummary) -> CatalogHeader:
    """Return the header of the catalog that an entry names."""
    return CatalogHeader(
        run=entry.run,
        at=entry.at,
        release=entry.release or "",
        environment=entry.environment or "",
        commit=entry.commit or "",
        digest=summary.digest,
        size=summary.size,
    )


class CatalogCache:
    """Packed catalogs of other nodes, on disk.

    Args:
        state: The state directory.
        most: The limit of all files together, in bytes.
    """

    def __init__(self, state: Path, *, most: int = MAX_CACHED) -> None:
        self._directory = state / "catalogs" / "read"
        self._most = most

    async def packed(self, kv: KeyValue, node: NodeName, summary: CatalogSummary) -> bytes:
        """Return the packed catalog of a node, with the digest that its entry names.

        Raises:
            InvalidInputError: The catalog is too large, or the bus lacks it.
            UnavailableError: The bus is unreachable, or denies the read.
        """
        found = self.cached(node, summary.digest)
        if found is None:
            found = await fetch_chunks(
                kv, catalogs_of(node), digest=summary.digest, size=summary.size, most=MAX_PACKED
            )
            self._write(node, chunk_value(summary.digest, found))
        return found

    def cached(self, node: NodeName, digest: str) -> bytes | None:
        """Return the cached catalog with a digest; `None` without one."""
        with suppress(OSError):
            head, _, data = (self._directory / node).read_bytes().partition(b"\n")
            if head == digest.encode("ascii", "replace") and digest_of(data) == digest:
                return data
        return None

    def keep(self, nodes: Collection[str]) -> None:
        """Remove the catalogs of all nodes but these."""
        for name in list_names(self._directory):
            if name not in nodes:
                remove(self._directory / name)

    def _write(self, node: NodeName, value: bytes) -> None:
        path = self._directory / node
        with disk_errors(path):
            make_private(self._directory)
            names = list_names(self._directory)
            used = sum((self._directory / name).stat().st_size for name in names)
            if used + len(value) <= self._most:
                replace_file(path, value, mode=0o600)
