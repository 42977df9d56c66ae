"""The file of a preview's cache: data by its digest, catalogs, and entries of nodes.

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
"""

import os
import stat
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.packed import unpacked
from localpuppet.base.machine.database import (
    DamagedError,
    Database,
    EarlierFormatError,
    Format,
    LaterFormatError,
)
from localpuppet.base.machine.files import disk_errors, list_names, make_private, remove
from localpuppet.base.machine.sqlite import sqlite3
from localpuppet.node.preview.catalog_items import digest

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
_FORMAT = Format(version=5, tables=_TABLES)
_DAMAGE = (DamagedError, EarlierFormatError, LaterFormatError)
# A blob has less than this when it is unpacked: four times an answer of the compiler, whose texts
# are written as ASCII in JSON within JSON.
MAX_UNPACKED = 256 * 1024 * 1024
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
    """The file of a cache for one version of Puppet and localpuppet.

    Args:
        directory: The directory of the cache, 0700; created if missing.
        platform: The versions of all programs that a catalog depends on.

    Raises:
        InvalidInputError: Another user can write to the cache.
    """

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
        """Yield the connection; remove a damaged file, which holds nothing that cannot be remade.

        Raises:
            DamagedEntryError: The file was damaged.
            StateError: The disk fails.
        """
        with self._removing_damage(), self.database.use() as connection:
            yield connection

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection in a transaction, all of which another process sees or nothing.

        Raises:
            DamagedEntryError: The file was damaged.
            StateError: The disk is full, or fails.
        """
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

    Raises:
        InvalidInputError: It is a link, has another owner, or its mode lets others write.
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
    """Return the data in compressed bytes.

    Raises:
        DamagedEntryError: They are damaged, or too large.
    """
    with entry_damage():
        return unpacked(data, most=MAX_UNPACKED)  # type: ignore[arg-type]
