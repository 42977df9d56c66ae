"""The cache of a preview: results of compiles with their read-sets, by node.

    cache = PreviewCache(Path("cache"), platform="puppet 7.23.0 ...")
    outcomes = cache.store([result, ...])   # one transaction
    for entry in cache.entries(node):       # the newest first; verified
        ...

- A part of a read-set is stored once for all nodes. Parts that name the node are its own; all
  others are listed in one blob for the nodes with the same list.
- What is damaged is removed, so that its node is compiled again. A file that is no database is
  made again.
- The oldest entries are removed beyond the limit of the file's size.
"""

import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localpuppet.base.formats.strict_json import loads_again
from localpuppet.node.preview.cache_file import CacheFile, DamagedEntryError, pack, today, unpack
from localpuppet.node.preview.catalog_items import DIGEST_BYTES, packed
from localpuppet.node.preview.catalog_store import CatalogStore, add_blob, checksum, read_blob
from localpuppet.node.preview.eviction import evict
from localpuppet.node.preview.ports import CompileFailure
from localpuppet.node.preview.read_set import DataFileReads, DirectoryReads, NodeReads, ReadSet
from localpuppet.node.preview.release_index import States, TreeStates
from localpuppet.node.puppet.catalog import CanonicalCatalog

# Bytes of one file, unless the caller passes another limit.
LIMIT = 2 * 1024**3
# Entries of one node: the main branch, and changes that are under review.
MAX_ENTRIES = 16
_COLUMNS = "id, capture, enc, input, paths, parts, own, catalog, failure, checksum, day"

ReadPart = DirectoryReads | DataFileReads


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOutcome:
    """What a compile made: a catalog, by its digest in the cache, or a failure."""

    catalog: bytes | None
    failure: CompileFailure | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryInput:
    """What the node of an entry was compiled from.

    Attributes:
        capture: The digest of its capture.
        enc: The digest of the release's `enc.yaml`; empty without one.
        values: The digest of what the compile read of the node.
    """

    capture: bytes
    enc: bytes
    values: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntry:
    """A stored result of a node.

    Attributes:
        number: Its number in the cache.
        input: What the node was compiled from.
        paths: The digest of what was read of the node.
        parts: The digest of the list of shared parts.
        own: The digests of the node's own parts.
        outcome: The result.
    """

    number: int
    input: EntryInput
    paths: bytes
    parts: bytes
    own: tuple[bytes, ...]
    outcome: CompileOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResult:
    """A result to store.

    Attributes:
        node: The node.
        input: What it was compiled from.
        reads: Its read-set; `None` if no later preview may use the result.
        catalog: The catalog; `None` if it did not compile.
        failure: Why it did not compile.
    """

    node: str
    input: EntryInput
    reads: ReadSet | None
    catalog: CanonicalCatalog | None
    failure: CompileFailure | None


class PreviewCache(TreeStates):
    """The cache in a directory.

    Args:
        directory: The directory; created 0700 if missing.
        platform: The versions of all programs that a catalog depends on.
        limit: Bytes of the file.

    Raises:
        InvalidInputError: Another user can write to the directory.
        StateError: The disk fails.
    """

    def __init__(self, directory: Path, *, platform: str, limit: int = LIMIT) -> None:
        self._file = CacheFile(directory, platform=platform)
        self.catalogs = CatalogStore(self._file)
        self._limit = limit
        self._version = -1

    def entries(self, node: str) -> list[CacheEntry]:
        """Return the results of a node, the newest first; remove damaged ones."""
        query = f"SELECT {_COLUMNS} FROM entries WHERE node = ? ORDER BY id DESC"  # noqa: S608
        try:
            with self._file.reading() as connection:
                rows = connection.execute(query, (node,)).fetchall()
        except DamagedEntryError:
            return []
        entries, damaged, old = [], [], []
        for row in rows:
            try:
                entries.append(_entry(node, row))
            except (ValueError, TypeError, AttributeError):
                damaged.append((row[0],))
                continue
            if row[-1] != today():
                old.append((today(), row[0]))
        if damaged or old:
            with suppress(DamagedEntryError), self._file.transaction() as connection:
                connection.executemany("DELETE FROM entries WHERE id = ?", damaged)
                connection.executemany("UPDATE entries SET day = ? WHERE id = ?", old)
        return entries

    def part(self, name: bytes) -> ReadPart:
        """Return a part of a read-set.

        Raises:
            DamagedEntryError: It is damaged or missing.
        """
        raw = self._json(name)
        try:
            if "states" in raw:
                return DirectoryReads(**raw)
            keys = raw.pop("keys")
            listed = None if keys is None else tuple(self._json(bytes.fromhex(keys)))
            return DataFileReads(**raw, keys=listed)
        except (KeyError, TypeError, AttributeError) as error:
            raise DamagedEntryError(str(error)) from error

    def parts(self, name: bytes) -> tuple[bytes, ...]:
        """Return the digests in a list of parts.

        Raises:
            DamagedEntryError: It is damaged or missing.
        """
        with self._file.reading() as connection:
            return _split(read_blob(connection, name))

    def paths(self, name: bytes) -> tuple[NodeReads, tuple[str, ...]]:
        """Return what was read of a node, and the custom types that were loaded.

        Raises:
            DamagedEntryError: It is damaged or missing.
        """
        raw = self._json(name)
        try:
            types = tuple(raw.pop("types"))
            for kind in ("facts", "trusted"):
                raw[kind] = [tuple(path) for path in raw[kind]]
            return NodeReads(**{kind: tuple(listed) for kind, listed in raw.items()}), types
        except (KeyError, TypeError, AttributeError) as error:
            raise DamagedEntryError(str(error)) from error

    def _json(self, name: bytes) -> Any:  # noqa: ANN401 - a form of this module
        with self._file.reading() as connection:
            data = read_blob(connection, name)
        try:
            return loads_again(data)
        except ValueError as error:
            raise DamagedEntryError(str(error)) from error

    def store(self, results: Sequence[StoredResult]) -> list[CompileOutcome]:
        """Store results, all or none; return each with the digest of its catalog.

        Raises:
            StateError: The disk is full, or fails.
        """
        try:
            return self._store(results)
        except DamagedEntryError:  # the file was removed
            return self._store(results)

    def _store(self, results: Sequence[StoredResult]) -> list[CompileOutcome]:
        with self._file.transaction() as connection:
            version = int(connection.execute("PRAGMA data_version").fetchone()[0])
            if version != self._version:  # another process may have removed items
                self.catalogs.forget_numbers()
                self._version = version
            outcomes = []
            for result in results:
                name = None
                if result.catalog is not None:
                    name = self.catalogs.add(connection, result.catalog)
                outcome = CompileOutcome(catalog=name, failure=result.failure)
                outcomes.append(outcome)
                if result.reads is not None:
                    _insert(connection, result, result.reads, outcome)
            evict(connection, limit=self._limit)
        return outcomes

    def adopt(self, node: str, entry: CacheEntry, own: EntryInput) -> None:
        """Note that an entry holds for another capture, which then needs no second look."""
        sum_ = checksum(node.encode(), *_fields(entry, own))
        with suppress(DamagedEntryError), self._file.transaction() as connection:
            connection.execute(
                "UPDATE entries SET capture = ?, enc = ?, checksum = ? WHERE id = ?",
                (own.capture, own.enc, sum_, entry.number),
            )

    def discard(self, node: str) -> None:
        """Remove all results of a node: something in them is damaged."""
        with suppress(DamagedEntryError), self._file.transaction() as connection:
            catalogs = connection.execute(
                "SELECT DISTINCT catalog FROM entries WHERE node = ?", (node,)
            ).fetchall()
            connection.executemany("DELETE FROM catalogs WHERE digest = ?", catalogs)
            connection.execute("DELETE FROM entries WHERE node = ?", (node,))

    def get(self, tree: str) -> States | None:
        """Return the states of a tree; `None` if they are unknown."""
        query = "SELECT states, checksum FROM trees WHERE digest = ?"
        try:
            with self._file.reading() as connection:
                row = connection.execute(query, (tree,)).fetchone()
            if row is None or checksum(tree.encode(), row[0]) != row[1]:
                return None
            states: dict[str, str] = loads_again(unpack(row[0]))
        except (DamagedEntryError, ValueError, TypeError):
            return None
        return states

    def put(self, tree: str, states: States) -> None:
        """Remember the states of a tree."""
        data = pack(packed({**states}))
        with suppress(DamagedEntryError), self._file.transaction() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO trees (digest, states, day, checksum) VALUES (?, ?, ?, ?)",
                (tree, data, today(), checksum(tree.encode(), data)),
            )

    def close(self) -> None:
        """Close the file."""
        self._file.database.close()


def _insert(
    connection: sqlite3.Connection, result: StoredResult, reads: ReadSet, outcome: CompileOutcome
) -> None:
    shared: list[bytes] = []
    own: list[bytes] = []
    short = result.node.partition(".")[0]
    for directory, inner in reads.directories.items():
        names = (directory, *inner.states)
        place = own if any(short in name for name in names) else shared
        place.append(add_blob(connection, packed(inner.form())))
    for file in reads.data:
        keys = None if file.keys is None else add_blob(connection, packed([*file.keys])).hex()
        place = own if short in file.file else shared
        place.append(add_blob(connection, packed({**file.form(), "keys": keys})))
    listed = [add_blob(connection, b"".join(sorted(shared))), b"".join(sorted(own))]
    entry = CacheEntry(
        number=0,
        input=result.input,
        paths=add_blob(connection, packed({**reads.node.form(), "types": [*reads.types]})),
        parts=listed[0],
        own=_split(listed[1]),
        outcome=outcome,
    )
    fields = _fields(entry, result.input)
    sum_ = checksum(result.node.encode(), *fields)
    connection.execute("DELETE FROM entries WHERE node = ? AND checksum = ?", (result.node, sum_))
    connection.execute(
        "INSERT INTO entries (node, capture, enc, input, paths, parts, own, catalog, failure, day,"
        " checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (result.node, *fields[:-1], fields[-1].decode(), today(), sum_),
    )
    connection.execute(
        "DELETE FROM entries WHERE node = ? AND id NOT IN"
        " (SELECT id FROM entries WHERE node = ? ORDER BY id DESC LIMIT ?)",
        (result.node, result.node, MAX_ENTRIES),
    )


def _fields(entry: CacheEntry, own: EntryInput) -> tuple[bytes, ...]:
    """Return the columns of an entry that its checksum covers, the failure last."""
    failure = entry.outcome.failure
    text = b"" if failure is None else packed([failure.message, failure.file, failure.line])
    return (
        *(own.capture, own.enc, own.values, entry.paths, entry.parts, b"".join(entry.own)),
        *(entry.outcome.catalog or b"", text),
    )


def _entry(node: str, row: Sequence[Any]) -> CacheEntry:
    """Return the entry in a row.

    Raises:
        DamagedEntryError: Its checksum differs.
    """
    number, *columns, failure, sum_, _ = row
    fields = [bytes(column) for column in columns]
    if checksum(node.encode(), *fields, failure.encode()) != sum_:
        raise DamagedEntryError("an entry has another checksum")
    capture, enc, values, paths, parts, own, catalog = fields
    stored = None
    if failure:
        message, file, line = loads_again(failure.encode())
        stored = CompileFailure(message=message, file=file, line=line)
    return CacheEntry(
        number=number,
        input=EntryInput(capture=capture, enc=enc, values=values),
        paths=paths,
        parts=parts,
        own=_split(own),
        outcome=CompileOutcome(catalog=catalog or None, failure=stored),
    )


def _split(data: bytes) -> tuple[bytes, ...]:
    return tuple(data[at : at + DIGEST_BYTES] for at in range(0, len(data), DIGEST_BYTES))
