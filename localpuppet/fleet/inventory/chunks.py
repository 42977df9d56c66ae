"""Data that an entry names by its digest, transferred over the bus in chunks: exports, catalogs.

- The chunks are in one of two slots, `PREFIX/SLOT/N`, where `PREFIX` has the kind of data and the
  node. Each chunk starts with the digest of the whole.
- A node writes all chunks into the slot that its entry on the bus does not name, then publishes the
  entry. So a reader gets the old or the new data whole, even if the writer dies.
- Chunks that the bus has already are not written again.
- If neither the entry nor the one on the bus names data of a kind, its chunks are removed.
- On disk, `offered/DIGEST` has the data, and `landed` the slot and digest that the entry on the bus
  names. A file is written before the inventory's outbox names it, and kept while the outbox does.
"""

import hashlib
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from localpuppet.base.errors import InvalidInputError, StateError, UnavailableError
from localpuppet.base.machine import files
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.inventory.entry import InventoryEntry

CHUNK = 256 * 1024
SLOTS = ("a", "b")


def cut(data: bytes, size: int = CHUNK) -> list[bytes]:
    """Return data in chunks of `size` bytes, in order."""
    return [data[at : at + size] for at in range(0, len(data), size)]


def chunks_of(size: int) -> int:
    """Return the number of chunks for a number of bytes."""
    return -(-size // CHUNK)


def digest_of(data: bytes) -> str:
    """Return the SHA-256 of data, hexadecimal."""
    return hashlib.sha256(data).hexdigest()


class ChunkOutbox:
    """The data of one kind that this node offers, on disk."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "offered"
        self._landed = directory / "landed"

    def write(self, data: bytes) -> str:
        """Write data to the file of its digest; return the digest."""
        digest = digest_of(data)
        path = self._directory / digest
        if not path.exists():
            files.make_private(self._directory)
            files.write_durably(path, data)
        return digest

    def read(self, digest: str) -> bytes:
        """Return data; raise `StateError` if its file is missing or damaged."""
        path = self._directory / digest
        with files.disk_errors(path):
            data = path.read_bytes()
        if digest_of(data) != digest:
            raise StateError(
                "is damaged", where=str(path), hint="the next successful run rewrites it"
            )
        return data

    def note_landed(self, slot: str, digest: str) -> None:
        """Record the slot and the digest that the entry on the bus names."""
        files.make_private(self._landed.parent)
        files.write_durably(self._landed, f"{slot} {digest}".encode("ascii"))

    def note_removed(self) -> None:
        """Record that the bus has no chunks."""
        files.remove(self._landed)

    def landed(self) -> tuple[str, str] | None:
        """Return the recorded slot and digest; `None` if there is no readable record."""
        try:
            slot, _, digest = self._landed.read_text("ascii").partition(" ")
        except (OSError, ValueError):
            return None
        return slot, digest

    def keep(self, digests: Collection[str]) -> None:
        """Remove all files except those of `digests`."""
        for name in files.list_names(self._directory):
            if name not in digests:
                files.remove(self._directory / name)


@dataclass(slots=True, kw_only=True, eq=False)
class ChunkWriter:
    """Writes this node's chunks of one kind to the bus; `named` is the digest in an entry."""

    prefix: str
    outbox: ChunkOutbox
    named: Callable[[InventoryEntry], str | None]
    _slot: str = SLOTS[0]

    async def bring(
        self, kv: KeyValue, entry: InventoryEntry, on_bus: InventoryEntry | None
    ) -> None:
        """Write the chunks that the bus lacks, before the entry is published.

        `on_bus` is the entry there, whose data readers may still fetch; `None` if unknown.
        """
        digest = self.named(entry)
        before = None if on_bus is None else self.named(on_bus)
        if digest is None:
            if before is None and self.outbox.landed() is not None:
                await remove_chunks(kv, self.prefix)
                self.outbox.note_removed()
            return
        data = self.outbox.read(digest)
        self._slot = await self._slot_for(kv, digest, before)
        for number, chunk in enumerate(cut(data)):
            key, value = chunk_key(self.prefix, self._slot, number), chunk_value(digest, chunk)
            if await _get(kv, key) != value:
                await kv.put(key, value)

    def landed(self, entry: InventoryEntry) -> None:
        """Record the slot that the entry on the bus names."""
        digest = self.named(entry)
        if digest is not None:
            self.outbox.note_landed(self._slot, digest)

    async def _slot_for(self, kv: KeyValue, digest: str, on_bus: str | None) -> str:
        """Return the slot that holds this data, or else a slot that the entry does not name."""
        digests = {slot: await self._digest_in(kv, slot) for slot in SLOTS}
        # If the bus denies the read, use the slot that this node recorded.
        slot, landed = self.outbox.landed() or ("", "")
        if slot in SLOTS and not digests[slot]:
            digests[slot] = landed
        named = on_bus or landed
        for slot in SLOTS:
            if digests[slot] == digest:
                return slot
        return next(slot for slot in SLOTS if not named or digests[slot] != named)

    async def _digest_in(self, kv: KeyValue, slot: str) -> str:
        chunk = await _get(kv, chunk_key(self.prefix, slot, 0))
        return "" if chunk is None else chunk.partition(b"\n")[0].decode("ascii", "replace")


async def fetch_chunks(
    kv: KeyValue, prefix: str, *, digest: str | None, size: int, most: int
) -> bytes:
    """Return the data that a node's entry names.

    Raises:
        InvalidInputError: The size is not accepted, or the bus lacks the data.
        UnavailableError: The bus is unreachable, or denies the read.
    """
    if digest is None or not 0 < size <= most:
        raise InvalidInputError(f"{size} bytes; 1 to {most} are allowed")
    for slot in SLOTS:
        parts = []
        for number in range(chunks_of(size)):
            stored = await kv.get(chunk_key(prefix, slot, number))
            head, _, chunk = (b"" if stored is None else stored.value).partition(b"\n")
            if head != digest.encode("ascii", "replace") or len(chunk) > CHUNK:
                break
            parts.append(chunk)
        data = b"".join(parts)
        if digest_of(data) == digest:
            return data
    raise InvalidInputError("the bus does not hold the bytes that the node's entry names")


async def remove_chunks(kv: KeyValue, prefix: str) -> None:
    """Remove a node's chunks of one kind, as far as the bus allows it."""
    for slot in SLOTS:
        number = 0
        with suppress(UnavailableError):  # read access may be denied
            while (stored := await kv.get(chunk_key(prefix, slot, number))) is not None:
                if not await kv.remove_if_revision(stored.key, stored.revision):
                    break
                number += 1


def chunk_key(prefix: str, slot: str, number: int) -> str:
    return f"{prefix}{slot}/{number}"


def chunk_value(digest: str, chunk: bytes) -> bytes:
    return digest.encode("ascii") + b"\n" + chunk


async def _get(kv: KeyValue, key: str) -> bytes | None:
    try:
        stored = await kv.get(key)
    except UnavailableError:
        return None  # read access may be denied; if the bus is unreachable, the write fails as well
    return None if stored is None else stored.value
