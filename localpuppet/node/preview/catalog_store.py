"""Stores catalogs so that nodes share resources.

A resource that was seen before in this process becomes a shared item; until then it is one of the
catalog's own, which are compressed together. So a resource of one node costs no row and no index.
"""

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from localpuppet.base.formats.json_text import canonical
from localpuppet.base.formats.strict_json import loads_again
from localpuppet.base.machine.sqlite import sqlite3
from localpuppet.node.preview.cache_file import (
    CacheFile,
    DamagedEntryError,
    entry_damage,
    pack,
    unpack,
)
from localpuppet.node.preview.catalog_items import (
    CatalogHead,
    catalog_digest,
    catalog_of,
    digest,
    items_of,
    with_ends,
)
from localpuppet.node.puppet.catalog import CanonicalCatalog

# Resources that this process remembers as seen, some 60 bytes each.
_SEEN = 250_000
_MAX_NUMBER = 2**32 - 1
_VARIABLES = 500  # of one statement


@dataclass(frozen=True, slots=True)
class _StoredCatalog:
    """A catalog in the file: its items by digest, own ones with their bytes."""

    own_head: bytes
    head: bytes
    own: Mapping[bytes, bytes]
    shared: Mapping[bytes, int]


class CatalogStore:
    """The catalogs of a cache.

    Args:
        file: The file of the cache.
    """

    def __init__(self, file: CacheFile) -> None:
        self._file = file
        self._seen: set[int] = set()

    def add(self, connection: sqlite3.Connection, catalog: CanonicalCatalog) -> bytes:
        """Store a catalog within a transaction; return its digest."""
        own_head, shared_head = CatalogHead.of(catalog).parts()
        head = add_blob(connection, shared_head)
        items = {digest(item): item for item in items_of(catalog)}
        name = catalog_digest(own_head, head, [*items])
        if connection.execute("SELECT 1 FROM catalogs WHERE digest = ?", (name,)).fetchone():
            return name
        shared = array("I")
        own: list[str] = []
        for key, item in items.items():
            number = self._number(connection, key, item)
            if number is None:
                own.append(item.decode())
            else:
                shared.append(number)
        inside = canonical([own_head.decode(), *own])
        connection.execute(
            "INSERT INTO catalogs (digest, own, head, shared) VALUES (?, ?, ?, ?)",
            (name, pack(inside), head, _delta(shared)),
        )
        return name

    def _number(self, connection: sqlite3.Connection, key: bytes, item: bytes) -> int | None:
        """Return the number of a shared item; `None` if this is the first catalog that has it."""
        row = connection.execute("SELECT id FROM items WHERE digest = ?", (key,)).fetchone()
        if row is None and hash(key) in self._seen:
            insert = "INSERT INTO items (digest, data) VALUES (?, ?) RETURNING id"
            row = connection.execute(insert, (key, pack(item))).fetchone()
        if len(self._seen) >= _SEEN:
            self._seen.clear()
        self._seen.add(hash(key))
        # A damaged number does not count.
        return row[0] if row is not None and 0 < row[0] <= _MAX_NUMBER else None

    def head(self, name: bytes) -> CatalogHead:
        """Return the head of a catalog.

        Raises:
            DamagedEntryError: It is damaged or missing.
        """
        with self._file.reading() as connection:
            stored = self._stored(connection, name)
            return _head(connection, stored)

    def differing(self, before: bytes, after: bytes) -> tuple[CanonicalCatalog, CanonicalCatalog]:
        """Return the parts of two catalogs that differ, whose difference is that of the wholes.

        Raises:
            DamagedEntryError: One is damaged or missing.
        """
        with self._file.reading() as connection:
            first, second = (self._stored(connection, name) for name in (before, after))
            both = {*first.own, *first.shared} & {*second.own, *second.shared}
            parts = (_part(connection, side, but=both) for side in (first, second))
            return with_ends(*parts)

    def _stored(self, connection: sqlite3.Connection, name: bytes) -> _StoredCatalog:
        """Return a catalog whose digest was verified, except for the bytes of shared items."""
        row = connection.execute(
            "SELECT own, head, shared FROM catalogs WHERE digest = ?", (name,)
        ).fetchone()
        if row is None:
            raise DamagedEntryError("no such catalog")
        with entry_damage():
            own_head, *own = (str(text).encode() for text in loads_again(unpack(row[0])))
            numbers = shared_numbers(row[2])
        stored = _StoredCatalog(
            own_head=own_head,
            head=bytes(row[1]),
            own={digest(item): item for item in own},
            shared={bytes(key): number for number, key in _rows(connection, "id, digest", numbers)},
        )
        keys = [*stored.own, *stored.shared]
        if catalog_digest(own_head, stored.head, keys) != name:
            raise DamagedEntryError("a catalog has another digest")
        return stored


def add_blob(connection: sqlite3.Connection, data: bytes) -> bytes:
    """Store bytes within a transaction; return their digest."""
    name = digest(data)
    if not connection.execute("SELECT 1 FROM blobs WHERE digest = ?", (name,)).fetchone():
        connection.execute("INSERT INTO blobs (digest, data) VALUES (?, ?)", (name, pack(data)))
    return name


def read_blob(connection: sqlite3.Connection, name: bytes) -> bytes:
    """Return the bytes of a digest.

    Raises:
        DamagedEntryError: They are damaged or missing.
    """
    row = connection.execute("SELECT data FROM blobs WHERE digest = ?", (name,)).fetchone()
    if row is None:
        raise DamagedEntryError("no such blob")
    data = unpack(row[0])
    if digest(data) != name:
        raise DamagedEntryError("a blob has another digest")
    return data


def _head(connection: sqlite3.Connection, stored: _StoredCatalog) -> CatalogHead:
    with entry_damage():
        return CatalogHead.parse(stored.own_head, read_blob(connection, stored.head))


def _part(
    connection: sqlite3.Connection, stored: _StoredCatalog, *, but: set[bytes]
) -> CanonicalCatalog:
    """Return a catalog with all its items except some."""
    wanted = {number for key, number in stored.shared.items() if key not in but}
    items = [item for key, item in stored.own.items() if key not in but]
    for _, key, data in _rows(connection, "id, digest, data", wanted):
        item = unpack(data)
        if digest(item) != key:
            raise DamagedEntryError("an item has another digest")
        items.append(item)
    head = _head(connection, stored)
    with entry_damage():
        return catalog_of(head, items)


def _rows(connection: sqlite3.Connection, columns: str, numbers: Iterable[int]) -> Iterator[Any]:
    waiting = sorted(numbers)
    for start in range(0, len(waiting), _VARIABLES):
        some = waiting[start : start + _VARIABLES]
        marks = ",".join("?" * len(some))
        query = f"SELECT {columns} FROM items WHERE id IN ({marks})"  # noqa: S608 - no text from outside
        yield from connection.execute(query, some)


def _delta(numbers: "array[int]") -> bytes:
    """Return numbers as their differences, compressed."""
    ordered = sorted(numbers)
    steps = array(
        "I", (number - last for number, last in zip(ordered, [0, *ordered], strict=False))
    )
    return pack(steps.tobytes())


def shared_numbers(data: object) -> list[int]:
    """Return the numbers of a catalog's shared items.

    Raises:
        DamagedEntryError: They are damaged.
    """
    steps = array("I")
    with entry_damage():
        steps.frombytes(unpack(data))
    return list(accumulate(steps))


def checksum(*parts: bytes) -> bytes:
    """Return the checksum of a row: no two lists of parts have the same."""
    form = hashlib.sha256()
    for part in parts:
        form.update(len(part).to_bytes(8) + part)
    return form.digest()[:16]
