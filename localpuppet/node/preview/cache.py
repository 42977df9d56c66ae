"""The cache of a preview: results of compiles with their read-sets, and who looks for them.

    cache = PreviewCache(Path("cache"), platform="puppet 7.23.0 ...")
    outcomes = cache.store([compiled, ...])   # one transaction
    for entries in cache.entries(nodes):      # of each node the newest first; verified
        ...

- A part of a read-set is stored once for all nodes. Parts that name the node are in its entry; all
  others are listed in one blob for the nodes with the same list.
- What is damaged is removed, so that its node is compiled again. A file that is no database is
  made again.
- *The incremental rule*: a node is compiled again only if no stored result holds. A result holds if
  everything in its read-set has the same digest. There is no other mechanism.
- A part of read-sets that nodes share is compared once for each release. A capture is parsed only
  if its bytes are new for a result that holds otherwise.
- Untrusted code can lie about what it read: its results hold for its own revision at most.
- The oldest entries are removed beyond the limit of the file's size. What no entry uses is removed
  only then: sharing makes it cheap to keep, and expensive to look for.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, errors_at
from localpuppet.base.formats.strict_json import canonical, loads_again
from localpuppet.base.formats.values import Json, field_values
from localpuppet.base.machine.sqlite import sqlite3
from localpuppet.base.value import Value
from localpuppet.node.enc.document import ReleaseEnc, classify
from localpuppet.node.preview import cache_file
from localpuppet.node.preview.cache_file import DamagedEntryError, digest
from localpuppet.node.preview.compile_request import (
    CompileEngine,
    CompileFailure,
    CompileRequest,
    CompileResult,
)
from localpuppet.node.preview.node_capture import CapturedNode, NodeCapture
from localpuppet.node.preview.read_set import NodeReads, ReadPart, ReadSet
from localpuppet.node.preview.release_index import ReleaseIndex, States, TreeStates
from localpuppet.node.preview.result import PreviewRevision
from localpuppet.node.puppet.catalog import CanonicalCatalog
from localpuppet.node.releases.release import ENC, Release

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
            parts |= {*_digests(cache_file.read_blob(connection, listed))}
    for part in parts:
        yield part
        with suppress(*cache_file.MALFORMED):
            keys.add(loads_again(cache_file.read_blob(connection, part))["keys"])
    for name in keys - {None}:
        with suppress(*cache_file.MALFORMED):
            yield bytes.fromhex(name)


def _digests(data: bytes) -> list[bytes]:
    size = cache_file.DIGEST_BYTES
    return [data[at : at + size] for at in range(0, len(data), size)]


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

    catalog: bytes | None = None
    failure: CompileFailure | None = None
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
    reads: ReadSet | None = None
    catalog: CanonicalCatalog | None = None
    failure: CompileFailure | None = None
    impure: tuple[str, ...] = ()
    scope: str = ""


class PreviewCache(TreeStates):
    """The cache in a directory: a file of at most `limit` bytes."""

    def __init__(self, directory: Path, *, platform: str, limit: int = LIMIT) -> None:
        self._file = cache_file.CacheFile(directory, platform=platform)
        self.catalogs = cache_file.CatalogStore(self._file)
        self._limit = limit
        self._keys = lru_cache(_KEY_LISTS)(
            lambda name: tuple(loads_again(self._blob(bytes.fromhex(name))))
        )

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

    def parts(self, name: bytes) -> list[bytes]:
        return _digests(self._blob(name))

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
        rows = []
        for node, entry, source in uses:
            if source != entry.source or entry.day != cache_file.today():
                parts = node.encode(), entry.scope.encode(), source, entry.outcome.catalog or b""
                checksum = cache_file.checksum(*parts, entry.body)
                rows.append((source, checksum, cache_file.today(), entry.number))
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
        data = cache_file.pack(canonical({**states}))
        with suppress(cache_file.DamagedEntryError), self._file.transaction() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO trees (digest, states, day, checksum) VALUES (?, ?, ?, ?)",
                (tree, data, cache_file.today(), cache_file.checksum(tree.encode(), data)),
            )

    def close(self) -> None:
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
    paths = cache_file.add_blob(connection, canonical(field_values(reads.node))).hex()
    listed = cache_file.add_blob(connection, b"".join(sorted(shared))).hex()
    parts = [reads.values, paths, listed, own, field_values(failure) if failure else None]
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
    form = field_values(part)
    if part.keys is not None:
        form["keys"] = cache_file.add_blob(connection, canonical([*part.keys])).hex()
    return form


# Why no stored result holds.
NEVER = "was not compiled before"
DAMAGED = "the cache is damaged"
_NODE = "facts, parameters or classes of the node"
# Results that are stored in one transaction. A killed preview loses at most these.
BATCH = 32
# Bytes of results after which a transaction ends earlier: they are in memory until then.
BATCH_BYTES = 64 * 1024**2


class PreviewSide(Value):
    """A release that a preview compiles.

    Attributes:
        is_stable: Whether its files stay the same; results of another are not stored.
        scope: The key of an untrusted revision, whose results serve it alone; empty for a trusted
            one, whose results serve every revision for which their read-sets hold.
    """

    revision: PreviewRevision
    release: Release
    index: ReleaseIndex
    is_stable: bool = True
    warnings: tuple[str, ...] = ()
    scope: str = ""

    def source(self, node: CapturedNode) -> bytes:
        """Return the digest of a node's capture and the release's `enc.yaml`."""
        return digest(node.capture + bytes.fromhex(self.index.state(ENC) or ""))


def request_of(capture: NodeCapture, enc: ReleaseEnc) -> CompileRequest:
    values = capture.values_for_puppet()
    with errors_at(f"node document of {capture.node}", LocalpuppetError):
        document = classify([*enc.select(capture.layers), values.data])
    return CompileRequest(
        node=capture.node,
        facts=values.facts,
        trusted=values.trusted,
        parameters=document.parameters,
        classes=document.classes,
        environment=document.environment,
        queries=values.queries,
    )


@dataclass(slots=True, eq=False)
class CacheSearch:
    """Looks for results of nodes that hold for releases."""

    cache: PreviewCache
    sides: Sequence[PreviewSide]
    _lists: dict[bytes, tuple[str, ...]] = field(default_factory=dict, init=False)
    _parts: dict[bytes, tuple[str, ...]] = field(default_factory=dict, init=False)
    _paths: dict[bytes, NodeReads] = field(default_factory=dict, init=False)
    _uses: list[tuple[str, CacheEntry, bytes]] = field(default_factory=list, init=False)

    def find(self, nodes: Sequence[CapturedNode]) -> Iterator[list[CompileOutcome | str]]:
        """Yield for each node what each release gets: a result that holds, or why none does.

        The reason is what differs in the newest result: a name in the release, or a text.
        """
        stored = self.cache.entries([node.name for node in nodes])
        for node, entries in zip(nodes, stored, strict=True):
            try:
                yield self._find(node, entries)
            except DamagedEntryError:
                self.cache.discard(node.name)
                yield [DAMAGED for _ in self.sides]
        self.cache.renew(self._uses)
        self._uses.clear()

    def _find(
        self, node: CapturedNode, entries: Iterable[CacheEntry]
    ) -> list[CompileOutcome | str]:
        answers: list[CompileOutcome | str] = [NEVER for _ in self.sides]
        values = _NodeValues(node)
        sources = [side.source(node) for side in self.sides]
        for entry in entries:
            problems = self._problems(entry)
            for number, side in enumerate(self.sides):
                if not isinstance(answers[number], str) or entry.scope not in ("", side.scope):
                    continue
                problem = problems[number]
                if not problem and sources[number] != entry.source:
                    problem = values.problem(entry, self._node_reads(entry.paths), side.release.enc)
                if not problem:
                    answers[number] = entry.outcome
                    self._uses.append((node.name, entry, sources[number]))
                elif answers[number] == NEVER:
                    answers[number] = problem
            if not any(isinstance(answer, str) for answer in answers):
                break
        return answers

    def _problems(self, entry: CacheEntry) -> tuple[str, ...]:
        """Return for each release the first name that differs, or empty."""
        if entry.parts not in self._lists:
            shared = [*map(self._shared_problems, self.cache.parts(entry.parts))]
            self._lists[entry.parts] = _first(shared, len(self.sides))
        own = [tuple(part.problem(side.index) for side in self.sides) for part in entry.own]
        return _first([self._lists[entry.parts], *own], len(self.sides))

    def _shared_problems(self, name: bytes) -> tuple[str, ...]:
        if name not in self._parts:
            part = self.cache.part(name)
            self._parts[name] = tuple(part.problem(side.index) for side in self.sides)
        return self._parts[name]

    def _node_reads(self, name: bytes) -> NodeReads:
        if name not in self._paths:
            self._paths[name] = self.cache.paths(name)
        return self._paths[name]


def _first(problems: Sequence[tuple[str, ...]], count: int) -> tuple[str, ...]:
    return tuple(
        next((of_part[number] for of_part in problems if of_part[number]), "")
        for number in range(count)
    )


class _NodeValues:
    """What a node gives; its capture is parsed at first use."""

    def __init__(self, node: CapturedNode) -> None:
        self._node = node
        self._requests: dict[int, CompileRequest | str] = {}

    def problem(self, entry: CacheEntry, reads: NodeReads, enc: ReleaseEnc) -> str:
        """Return why an entry does not hold for the node's capture, or empty."""
        if id(enc) not in self._requests:
            try:
                self._requests[id(enc)] = request_of(self._node.load(), enc)
            except LocalpuppetError as error:
                self._requests[id(enc)] = str(error)
        request = self._requests[id(enc)]
        if isinstance(request, str):
            return request
        return "" if reads.values(request) == entry.values else _NODE


@dataclass(slots=True, eq=False, kw_only=True)
class CacheFiller:
    """Compiles nodes; `advance` is called after each result."""

    cache: PreviewCache
    engine: CompileEngine
    advance: Callable[[], None] = lambda: None
    _requests: dict[str, CompileRequest] = field(default_factory=dict, init=False)

    def compile(
        self, side: PreviewSide, nodes: Sequence[CapturedNode]
    ) -> Iterator[tuple[NodeCompile, CompileOutcome]]:
        """Yield the compile of each node with what was stored of it, in any order."""
        sources = {node.name: side.source(node) for node in nodes}
        invalid: list[tuple[NodeCompile, CompileOutcome]] = []
        batch: list[NodeCompile] = []
        size = 0
        for result in self.engine.compile(side.release, self._ask(side, nodes, invalid)):
            request = self._requests.pop(result.node)
            batch.append(_compiled(side, sources[result.node], request, result))
            size += result.size
            self.advance()
            if len(batch) >= BATCH or size >= BATCH_BYTES:
                yield from zip(batch, self.cache.store(batch), strict=True)
                batch.clear()
                size = 0
        yield from zip(batch, self.cache.store(batch), strict=True)
        for compiled in invalid:
            self.advance()
            yield compiled

    def _ask(
        self,
        side: PreviewSide,
        nodes: Sequence[CapturedNode],
        invalid: list[tuple[NodeCompile, CompileOutcome]],
    ) -> Iterator[CompileRequest]:
        """Yield the requests; a node without a valid capture or document is not compiled."""
        for node in nodes:
            capture = None
            try:
                capture = node.load()
                request = request_of(capture, side.release.enc)
            except InvalidInputError as error:
                failure = CompileFailure(message=str(error))
                outcome = CompileOutcome(failure=failure, is_unread=capture is None)
                invalid.append((NodeCompile(node=node.name, source=b"", failure=failure), outcome))
            else:
                self._requests[node.name] = request
                yield request


def _compiled(
    side: PreviewSide, source: bytes, request: CompileRequest, result: CompileResult
) -> NodeCompile:
    impure = result.reads.impure
    reads = None
    if side.is_stable and not impure:
        made = ReadSet.of(result.reads, request, side.index)
        reads, impure = (None, (made,)) if isinstance(made, str) else (made, ())
    return NodeCompile(
        node=result.node,
        source=source,
        reads=reads,
        catalog=result.catalog,
        failure=result.failure,
        impure=impure,
        scope=side.scope,
    )
