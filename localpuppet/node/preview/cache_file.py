"""The file of a preview's cache: data by digest, catalogs as items that nodes share, entries.

    CanonicalCatalog  ->  head, [item, item, …]  ->  CanonicalCatalog

- An item has a resource with the relationships that lead to it. Items with the same bytes are the
  same in two catalogs.
- The head has the classes, the types of resources, and the files that resources get from modules.
- The digest of a catalog is the one of its items' digests.

    blobs     digest -> bytes: parts of read-sets, heads of catalogs
    items     number -> a resource that several catalogs have
    catalogs  digest -> its shared items by number, and its own items, compressed
    entries   node -> one result with its read-set; `checksum` covers the row and all digests in it;
              `scope` is the only revision that it serves, or empty
    trees     a tree of the content store -> the states of its names

- Every blob is verified by its digest, every catalog by the digests of its items, every entry by
  its checksum. What does not fit is as good as missing.
- Several processes may use it at a time. A killed one leaves whole results.
- It is made for one version of Puppet and localpuppet; others have files of their own.

A resource that was seen before in this process becomes a shared item; until then it is one of the
catalog's own, which are compressed together. So a resource of one node costs no row and no index.
"""

import hashlib
import os
import re
import stat
import time
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.packed import unpacked
from localpuppet.base.formats.strict_json import canonical, loads_again
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.files import disk_errors, list_names, make_private, remove
from localpuppet.base.machine.sqlite import (
    DamagedError,
    Database,
    EarlierFormatError,
    Format,
    LaterFormatError,
    sqlite3,
)
from localpuppet.base.value import Value
from localpuppet.node.preview.preview_limits import MAX_CACHED
from localpuppet.node.puppet.catalog import (
    DEFERRED,
    TYPE_KEY,
    CanonicalCatalog,
    CatalogEdge,
    CatalogResource,
)

DIGEST_BYTES = 20
# Puppet ignores the case of the scheme, and a query.
_SERVED = re.compile("puppet:(?://)?/modules/([^?]*)", re.IGNORECASE)


class CatalogHead(Value):
    """What a catalog has as a whole.

    Attributes:
        types: The types of its resources, and `Deferred` if it has a Deferred call.
        sources: Reference of a resource → path below `modules` of its sources, of files and
            directories; types of modules, such as `Concat_fragment`, have them as well.
    """

    certname: str
    environment: str
    classes: tuple[str, ...]
    types: tuple[str, ...]
    sources: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, catalog: CanonicalCatalog) -> "CatalogHead":
        values = (value for resource in catalog.resources for value in resource.parameters.values())
        deferred = {DEFERRED} if any(map(_is_deferred, values)) else set()
        return cls(
            certname=catalog.certname,
            environment=catalog.environment,
            classes=catalog.classes,
            types=tuple(sorted({resource.type for resource in catalog.resources} | deferred)),
            sources={
                f"{resource.type}[{resource.title}]": served
                for resource in catalog.resources
                if resource.type != "Class"
                and "::" not in resource.type  # a definition, which passes it on
                and (served := tuple(_served(resource.parameters.get("source"))))
            },
        )

    def parts(self) -> tuple[bytes, bytes]:
        """Return the bytes that are the node's own, and those that nodes may share."""
        sources = {name: [*paths] for name, paths in self.sources.items()}
        shared = [[*self.classes], [*self.types], sources]
        return canonical([self.certname, self.environment]), canonical(shared)

    @classmethod
    def parse(cls, own: bytes, shared: bytes) -> "CatalogHead":
        """Return the head in bytes of `parts`."""
        (certname, environment), (classes, types, sources) = loads_again(own), loads_again(shared)
        return cls(
            certname=certname,
            environment=environment,
            classes=tuple(classes),
            types=tuple(types),
            sources={name: tuple(paths) for name, paths in sources.items()},
        )


def items_of(catalog: CanonicalCatalog) -> Iterator[bytes]:
    """Yield the items of a catalog, in the order of its resources."""
    leading: dict[tuple[str, str], list[list[str]]] = {}
    for edge in catalog.edges:
        target = edge.target_type, edge.target_title
        leading.setdefault(target, []).append(
            [edge.source_type, edge.source_title, edge.relationship]
        )
    for resource in catalog.resources:
        yield canonical(
            [
                *(resource.type, resource.title, resource.exported, resource.file, resource.line),
                *([*resource.tags], resource.parameters, leading.pop(resource.reference, [])),
            ]
        )
    for (kind, title), ends in leading.items():  # to a resource that the catalog lacks
        yield canonical([kind, title, None, None, None, [], {}, ends])


def catalog_of(head: CatalogHead, items: Iterable[bytes]) -> CanonicalCatalog:
    """Return the catalog of items, or a part of it with some of its items."""
    resources, edges = [], []
    for data in items:
        kind, title, exported, file, line, tags, parameters, leading = loads_again(data)
        if exported is not None:
            resource = CatalogResource(
                type=kind,
                title=title,
                exported=exported,
                file=file,
                line=line,
                tags=tuple(tags),
                parameters=parameters,
            )
            resources.append(resource)
        edges += [
            CatalogEdge(source, name, kind, title, relationship)
            for source, name, relationship in leading
        ]
    return CanonicalCatalog(
        certname=head.certname,
        environment=head.environment,
        classes=head.classes,
        resources=tuple(sorted(resources, key=lambda item: item.reference)),
        edges=tuple(sorted(edges)),
    )


def with_ends(
    before: CanonicalCatalog, after: CanonicalCatalog
) -> tuple[CanonicalCatalog, CanonicalCatalog]:
    """Return two partial catalogs in which each relationship has both of its ends.

    An end that is in neither part is the same in both whole catalogs. It gets no parameters.
    """
    present = {item.reference for side in (before, after) for item in side.resources}
    ends = {
        (edge.source_type, edge.source_title) for side in (before, after) for edge in side.edges
    }
    bare = tuple(
        CatalogResource(
            type=kind, title=title, exported=False, file=None, line=None, tags=(), parameters={}
        )
        for kind, title in sorted(ends - present)
    )
    first, second = (replace(side, resources=(*side.resources, *bare)) for side in (before, after))
    return first, second


def digest(data: bytes) -> bytes:
    """Return the digest by which the cache names data."""
    return hashlib.sha256(data).digest()[:DIGEST_BYTES]


def catalog_digest(own: bytes, shared: bytes, items: Sequence[bytes]) -> bytes:
    return digest(b"".join(chain((digest(own), shared), sorted(items))))


def _is_deferred(value: Json) -> bool:
    if isinstance(value, list):
        return any(map(_is_deferred, value))
    if not isinstance(value, dict):
        return False
    return value.get(TYPE_KEY) == DEFERRED or any(map(_is_deferred, value.values()))


def _served(source: Json) -> Iterator[str]:
    """Yield the paths below `modules` that a file's parameter `source` names."""
    for item in source if isinstance(source, list) else [source]:
        if isinstance(item, str) and (served := _SERVED.match(item)):
            yield "/".join(part for part in served[1].split("/") if part not in ("", "."))


_TABLES = """
CREATE TABLE IF NOT EXISTS blobs (
    digest BLOB PRIMARY KEY, data BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS items (
    id INTEGER PRIMARY KEY AUTOINCREMENT, digest BLOB NOT NULL UNIQUE, data BLOB NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS catalogs (
    digest BLOB PRIMARY KEY, own BLOB NOT NULL, head BLOB NOT NULL, shared BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS entries (
    id INTEGER PRIMARY KEY AUTOINCREMENT, node TEXT NOT NULL, source BLOB NOT NULL,
    catalog BLOB NOT NULL, body BLOB NOT NULL, day INTEGER NOT NULL, checksum BLOB NOT NULL,
    scope TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS entries_of_node ON entries (node);
CREATE TABLE IF NOT EXISTS trees (
    digest TEXT PRIMARY KEY, states BLOB NOT NULL, day INTEGER NOT NULL, checksum BLOB NOT NULL
) STRICT, WITHOUT ROWID;
"""
_FORMAT = Format(version=6, tables=_TABLES)
_DAMAGE = (DamagedError, EarlierFormatError, LaterFormatError)
_DAY = 86400
# Days after which the file of another version is removed.
_UNUSED = 30
_NAME = "preview-{}.db"
# What reading a value raises that another program wrote, or that is damaged.
MALFORMED = (ValueError, KeyError, TypeError, AttributeError)


class DamagedEntryError(ValueError):
    """Something in the cache is damaged or missing; its catalog has to be compiled again."""


@contextmanager
def entry_damage() -> Iterator[None]:
    """Raise `DamagedEntryError` for a value that another program wrote, or that is damaged."""
    try:
        yield
    except MALFORMED as error:
        raise DamagedEntryError(str(error)) from error


class CacheFile:
    """The file of a cache for one version of Puppet and localpuppet."""

    def __init__(self, directory: Path, *, platform: str) -> None:
        make_private(directory)
        self.path = directory / _NAME.format(digest(platform.encode()).hex()[:16])
        refuse_foreign_cache(directory)
        for path in (self.path, *(Path(f"{self.path}{end}") for end in ("-wal", "-shm"))):
            refuse_foreign_cache(path)
        self.database = Database(self.path, _FORMAT, damaged="it is made again")
        self._remove_unused(directory)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection; remove a damaged file: all of it can be remade."""
        with self._removing_damage(), self.database.use() as connection:
            yield connection

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection in a transaction, all of which another process sees or nothing."""
        with self._removing_damage(), self.database.use() as connection:
            # Losing the last results in a power cut costs less than a sync for each.
            connection.execute("PRAGMA synchronous = NORMAL")
        with self._removing_damage(), self.database.transaction() as connection:
            yield connection

    @contextmanager
    def _removing_damage(self) -> Iterator[None]:
        try:
            yield
        except (StateError, UnicodeDecodeError) as error:
            if not _is_damage(error):
                raise
            self.database.remove()
            raise DamagedEntryError(str(error)) from error

    def _remove_unused(self, directory: Path) -> None:
        """Remove files of other versions that were not used for some time."""
        for name in list_names(directory):
            path = directory / name
            if name.startswith("preview-") and name.endswith(".db") and path != self.path:
                with disk_errors(path), suppress(FileNotFoundError):
                    if time.time() - path.stat().st_mtime > _UNUSED * _DAY:
                        remove(path)


def _is_damage(error: StateError | UnicodeDecodeError) -> bool:
    if isinstance(error, (*_DAMAGE, UnicodeDecodeError)):
        return True
    # A damaged schema lacks tables or columns, which SQLite calls an error of the statement.
    # Python reports text that is not UTF-8 without a code.
    code = getattr(error.__cause__, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return isinstance(error.__cause__, sqlite3.Error) and code == sqlite3.SQLITE_ERROR


def refuse_foreign_cache(path: Path) -> None:
    """Reject a directory or file of a cache that another user can write.

    Its catalogs would be used as if this user had compiled them.
    """
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise InvalidInputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    is_link = stat.S_ISLNK(status.st_mode)
    if is_link or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        what = "is a link" if is_link else f"mode {stat.S_IMODE(status.st_mode):04o}"
        raise InvalidInputError(
            f"another user could have written this cache ({what}, owner {status.st_uid})",
            where=str(path),
            hint="remove it, or pass another directory; a cache of an untrusted job is not used",
        )


def today() -> int:
    """Return the number of this day since 1970."""
    return int(time.time()) // _DAY


def pack(data: bytes) -> bytes:
    """Return data compressed."""
    return zlib.compress(data, 9)


def unpack(data: object) -> bytes:
    """Return the data in compressed bytes."""
    with entry_damage():
        return unpacked(data, most=MAX_CACHED)  # type: ignore[arg-type]


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
            if (number := self._number(connection, key, item)) is None:
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
        with self._file.reading() as connection:
            stored = self._stored(connection, name)
            return _head(connection, stored)

    def whole(self, name: bytes) -> CanonicalCatalog:
        with self._file.reading() as connection:
            stored = self._stored(connection, name)
            return _part(connection, stored, but=set())

    def differing(self, before: bytes, after: bytes) -> tuple[CanonicalCatalog, CanonicalCatalog]:
        """Return the parts of two catalogs that differ, whose difference is that of the wholes."""
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
    """Return the numbers of a catalog's shared items."""
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
