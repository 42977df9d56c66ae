"""The cache of a preview: results of compiles with their read-sets, within its limit.

    cache = PreviewCache(Path("cache"), platform="puppet 7.23.0 ...")
    outcomes = cache.store([compiled, ...])   # one transaction
    for entries in cache.entries(nodes):      # of each node the newest first; verified
        ...

- A part of a read-set is stored once for all nodes. Parts that name the node are in its entry; all
  others are listed in one blob for the nodes with the same list.
- What is damaged is removed, so that its node is compiled again. A file that is no database is
  made again.
- The oldest entries are removed beyond the limit of the file's size. What no entry uses is removed
  only then: sharing makes it cheap to keep, and expensive to look for.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from localpuppet.base.formats.strict_json import canonical, loads_again
from localpuppet.base.formats.values import Json, field_values
from localpuppet.base.machine.sqlite import sqlite3
from localpuppet.base.value import Value
from localpuppet.node.preview import cache_file
from localpuppet.node.preview.compile_request import CompileFailure
from localpuppet.node.preview.read_set import NodeReads, ReadPart, ReadSet
from localpuppet.node.preview.release_index import States, TreeStates
from localpuppet.node.puppet.catalog import CanonicalCatalog

# The file is emptied to this part of its limit.
_AFTER = 0.75
# Entries that go at a time: this part of all.
_SHARE = 8
# Days that the states of a tree stay.
_TREES = 30


def evict(connection: sqlite3.Connection, *, limit: int) -> None:
    """Remove the oldest entries if the file exceeds its limit in bytes, within a transaction."""
    if _used(connection) <= limit:
        return
    connection.execute("DELETE FROM trees WHERE day < ?", (cache_file.today() - _TREES,))
    _sweep(connection)
    while _used(connection) > limit * _AFTER:
        (count,) = connection.execute("SELECT count(*) FROM entries").fetchone()
        if not count:
            connection.execute("DELETE FROM trees")
            return
        connection.execute(
            "DELETE FROM entries WHERE id IN"
            " (SELECT id FROM entries ORDER BY day, id LIMIT max(1, ?))",
            (count // _SHARE,),
        )
        _sweep(connection)


def _used(connection: sqlite3.Connection) -> int:
    pages, free, size = (
        int(connection.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size


def _sweep(connection: sqlite3.Connection) -> None:
    """Remove what no entry uses."""
    connection.execute("DELETE FROM catalogs WHERE digest NOT IN (SELECT catalog FROM entries)")
    _only(connection, "items", "id", _items(connection))
    _only(connection, "blobs", "digest", _blobs(connection))


def _only(
    connection: sqlite3.Connection, table: str, column: str, used: Iterable[int | bytes]
) -> None:
    connection.execute("CREATE TEMP TABLE used (name PRIMARY KEY) WITHOUT ROWID")
    connection.executemany("INSERT OR IGNORE INTO temp.used VALUES (?)", ((name,) for name in used))
    connection.execute(
        f"DELETE FROM {table} WHERE {column} NOT IN (SELECT name FROM temp.used)"  # noqa: S608
    )
    connection.execute("DROP TABLE temp.used")


def _items(connection: sqlite3.Connection) -> Iterable[int]:
    for (data,) in connection.execute("SELECT shared FROM catalogs"):
        with suppress(cache_file.DamagedEntryError):
            yield from cache_file.shared_numbers(data)


def _blobs(connection: sqlite3.Connection) -> Iterable[bytes]:
    yield from (row[0] for row in connection.execute("SELECT head FROM catalogs"))
    lists, parts, keys = set(), set(), set()
    for (body,) in connection.execute("SELECT body FROM entries"):
        with suppress(*cache_file.MALFORMED):
            _, paths, listed, own, _ = loads_again(cache_file.unpack(body))
            yield bytes.fromhex(paths)
            lists.add(bytes.fromhex(listed))
            keys |= {part["keys"] for part in own}
    for listed in lists:
        yield listed
        with suppress(cache_file.DamagedEntryError):
            data = cache_file.read_blob(connection, listed)
            parts |= {
                data[at : at + cache_file.DIGEST_BYTES]
                for at in range(0, len(data), cache_file.DIGEST_BYTES)
            }
    for part in parts:
        yield part
        with suppress(*cache_file.MALFORMED):
            keys.add(loads_again(cache_file.read_blob(connection, part))["keys"])
    for name in keys - {None}:
        with suppress(*cache_file.MALFORMED):
            yield bytes.fromhex(name)


# Bytes of one file, unless the caller passes another limit.
LIMIT = 2 * 1024**3
# Entries of one node: the main branch, and as many of untrusted revisions.
MAX_ENTRIES = 16
# Nodes whose entries are read at a time.
_AT_A_TIME = 256
# Lists of keys that stay in memory.
_KEY_LISTS = 1024


class CompileOutcome(Value):
    """What a compile made: a catalog, by its digest in the cache, or a failure.

    `is_unread` if it was not even tried, because the capture cannot be read.
    """

    catalog: bytes | None
    failure: CompileFailure | None
    is_unread: bool = False


class CacheEntry(Value):
    """A stored result of a node.

    `source` is the digest of the capture and the `enc.yaml` that the node was compiled from. `body`
    has the bytes of all this but its source. Without a `scope`, it serves every revision.
    """

    number: int
    source: bytes
    values: str
    paths: bytes
    parts: bytes
    own: tuple[ReadPart, ...]
    outcome: CompileOutcome
    body: bytes
    day: int
    scope: str


class NodeCompile(Value):
    """A compile of a node, to store: `source` and `scope` as in `CacheEntry`.

    Without `reads` no later preview may use the result; `impure` says why it is always repeated.
    """

    node: str
    source: bytes
    reads: ReadSet | None
    catalog: CanonicalCatalog | None
    failure: CompileFailure | None
    impure: tuple[str, ...] = ()
    scope: str = ""


class PreviewCache(TreeStates):
    """The cache in a directory: a file of at most `limit` bytes."""

    def __init__(self, directory: Path, *, platform: str, limit: int = LIMIT) -> None:
        self._file = cache_file.CacheFile(directory, platform=platform)
        self.catalogs = cache_file.CatalogStore(self._file)
        self._limit = limit
        self._keys = lru_cache(_KEY_LISTS)(self._read_keys)

    def entries(self, nodes: Sequence[str]) -> Iterator[Iterator[CacheEntry]]:
        """Yield the results of each node, the newest first; remove damaged ones."""
        query = (
            "SELECT id, source, catalog, body, checksum, day, scope FROM entries"
            " WHERE node = ? ORDER BY id DESC"
        )
        for start in range(0, len(nodes), _AT_A_TIME):
            some = nodes[start : start + _AT_A_TIME]
            try:
                with self._file.reading() as connection:
                    rows = [connection.execute(query, (node,)).fetchall() for node in some]
            except cache_file.DamagedEntryError:
                rows = [[] for _ in some]
            yield from map(self._entries, some, rows)

    def _entries(self, node: str, rows: Iterable[Sequence[Any]]) -> Iterator[CacheEntry]:
        for row in rows:
            try:
                entry = self._entry(node, row)
            except cache_file.MALFORMED:
                with suppress(cache_file.DamagedEntryError), self._file.transaction() as connection:
                    connection.execute("DELETE FROM entries WHERE id = ?", (row[0],))
                continue
            yield entry

    def _entry(self, node: str, row: Sequence[Any]) -> CacheEntry:
        """Return the entry in a row; see `CacheEntry`."""
        number, source, catalog, body, expected, day, scope = row
        if cache_file.checksum(node.encode(), scope.encode(), source, catalog, body) != expected:
            raise cache_file.DamagedEntryError("an entry has another checksum")
        values, paths, parts, own, failure = loads_again(cache_file.unpack(body))
        return CacheEntry(
            number=number,
            source=source,
            values=values,
            paths=bytes.fromhex(paths),
            parts=bytes.fromhex(parts),
            own=tuple(map(self._part, own)),
            outcome=CompileOutcome(
                catalog=catalog or None, failure=CompileFailure(**failure) if failure else None
            ),
            body=body,
            day=day,
            scope=scope,
        )

    def part(self, name: bytes) -> ReadPart:
        """Return a shared part of a read-set."""
        with cache_file.entry_damage():
            return self._part(loads_again(self._blob(name)))

    def _part(self, form: Any) -> ReadPart:  # noqa: ANN401 - of `_part_form`
        keys = None if form["keys"] is None else self._keys(form["keys"])
        return ReadPart(**{**form, "keys": keys})

    def _read_keys(self, name: str) -> tuple[str, ...]:
        return tuple(loads_again(self._blob(bytes.fromhex(name))))

    def parts(self, name: bytes) -> list[bytes]:
        """Return the digests in a list of parts."""
        data = self._blob(name)
        return [
            data[at : at + cache_file.DIGEST_BYTES]
            for at in range(0, len(data), cache_file.DIGEST_BYTES)
        ]

    def paths(self, name: bytes) -> NodeReads:
        """Return what was read of a node."""
        with cache_file.entry_damage():
            raw = loads_again(self._blob(name))
            for kind in ("facts", "trusted"):
                raw[kind] = map(tuple, raw[kind])
            return NodeReads(**{kind: tuple(listed) for kind, listed in raw.items()})

    def _blob(self, name: bytes) -> bytes:
        with self._file.reading() as connection:
            return cache_file.read_blob(connection, name)

    def store(self, compiles: Sequence[NodeCompile]) -> list[CompileOutcome]:
        """Store results, all or none; return each with the digest of its catalog."""
        try:
            return self._store(compiles)
        except cache_file.DamagedEntryError:  # the file was removed
            return self._store(compiles)

    def _store(self, compiles: Sequence[NodeCompile]) -> list[CompileOutcome]:
        with self._file.transaction() as connection:
            outcomes = []
            for compiled in compiles:
                name = None
                if compiled.catalog is not None:
                    name = self.catalogs.add(connection, compiled.catalog)
                outcomes.append(CompileOutcome(catalog=name, failure=compiled.failure))
                if compiled.reads is not None:
                    _insert(connection, compiled, compiled.reads, name or b"")
            evict(connection, limit=self._limit)
        return outcomes

    def renew(self, uses: Iterable[tuple[str, CacheEntry, bytes]]) -> None:
        """Note that entries were used today, and hold for the sources of their nodes."""
        rows = [
            (source, _entry_checksum(node, source, entry), cache_file.today(), entry.number)
            for node, entry, source in uses
            if source != entry.source or entry.day != cache_file.today()
        ]
        if rows:
            update = "UPDATE entries SET source = ?, checksum = ?, day = ? WHERE id = ?"
            with suppress(cache_file.DamagedEntryError), self._file.transaction() as connection:
                connection.executemany(update, rows)

    def discard(self, node: str) -> None:
        """Remove all results of a node: something in them is damaged."""
        with suppress(cache_file.DamagedEntryError), self._file.transaction() as connection:
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
            if row is None or cache_file.checksum(tree.encode(), row[0]) != row[1]:
                return None
            states: dict[str, str] = loads_again(cache_file.unpack(row[0]))
        except (cache_file.DamagedEntryError, ValueError, TypeError):
            return None
        return states

    def put(self, tree: str, states: States) -> None:
        """Remember the states of a tree."""
        data = cache_file.pack(canonical({**states}))
        with suppress(cache_file.DamagedEntryError), self._file.transaction() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO trees (digest, states, day, checksum) VALUES (?, ?, ?, ?)",
                (tree, data, cache_file.today(), cache_file.checksum(tree.encode(), data)),
            )

    def close(self) -> None:
        """Close the file."""
        self._file.database.close()


def _insert(
    connection: sqlite3.Connection, compiled: NodeCompile, reads: ReadSet, catalog: bytes
) -> None:
    shared: list[bytes] = []
    own: list[Json] = []
    short = compiled.node.partition(".")[0]
    for part in reads.parts:
        form = _part_form(connection, part)
        if any(short in name for name in (*part.states, *part.listings)):
            own.append(form)
        else:
            shared.append(cache_file.add_blob(connection, canonical(form)))
    failure = compiled.failure
    parts = [
        *(reads.values, cache_file.add_blob(connection, canonical(field_values(reads.node))).hex()),
        *(cache_file.add_blob(connection, b"".join(sorted(shared))).hex(), own),
        field_values(failure) if failure else None,
    ]
    body = cache_file.pack(canonical(parts))
    node, scope = compiled.node, compiled.scope
    sum_ = cache_file.checksum(node.encode(), scope.encode(), compiled.source, catalog, body)
    connection.execute("DELETE FROM entries WHERE node = ? AND checksum = ?", (node, sum_))
    connection.execute(
        "INSERT INTO entries (node, source, catalog, body, day, checksum, scope)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (node, compiled.source, catalog, body, cache_file.today(), sum_, scope),
    )
    # Untrusted revisions displace each other only.
    connection.execute(
        "DELETE FROM entries WHERE id IN (SELECT id FROM entries"
        " WHERE node = ? AND (scope = '') = (? = '') ORDER BY id DESC LIMIT -1 OFFSET ?)",
        (node, scope, MAX_ENTRIES),
    )


def _part_form(connection: sqlite3.Connection, part: ReadPart) -> dict[str, Json]:
    """Return the JSON form of a part; its keys, which more parts share, by their digest."""
    keys = (
        None
        if part.keys is None
        else cache_file.add_blob(connection, canonical([*part.keys])).hex()
    )
    return {**field_values(part), "keys": keys}


def _entry_checksum(node: str, source: bytes, entry: CacheEntry) -> bytes:
    catalog = entry.outcome.catalog or b""
    return cache_file.checksum(node.encode(), entry.scope.encode(), source, catalog, entry.body)
