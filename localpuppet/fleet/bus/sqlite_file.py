"""The file of the SQLite bus: its place, schema, transactions, and the position of a watcher.

Root opens no database at a path that another user could replace. A SQLite file contains code
(views, triggers) and has side files found by name, and a name can become a link between a check and
the opening.

One database in WAL mode, 0600, in a directory that other users cannot write; synchronous=FULL, so
that committed data survives a power cut. Each public method is one short transaction: if another
process holds the lock, it raises `LockedError`, and the caller tries again.

Expiry uses the kernel's time since boot, so that a jump of the time of day expires nothing. After a
reboot, the time while the machine was off is unknown, so every ttl restarts: "gone no earlier than"
holds.

The revisions of a new file, or of a copy that was put back, start at the time of day in
microseconds, which no writer outruns. A watcher with a revision of an older file at this path is
therefore below `compacted`, and gets a listing.
"""

import ctypes
import os
import stat
import struct
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from localpuppet.base.errors import InvalidInputError, StateError, UnavailableError
from localpuppet.base.machine.files import make_private, sync_directory, users_of_root
from localpuppet.base.machine.process_table import boot_id, seconds_since_boot
from localpuppet.base.machine.sqlite import sqlite3
from localpuppet.base.value import Value
from localpuppet.fleet.bus.key_value import (
    Change,
    FullError,
    KeyListing,
    KeyRemoval,
    KeyValueEntry,
    KeyWrite,
)
from localpuppet.fleet.bus.store_calls import ListingEntries

_LIBC = ctypes.CDLL(None)
_STATX_BTIME, _BTIME_OFFSET = 0x800, 80  # statx(2)
# The kernel's limit of links in one path.
MAX_LINKS = 40


def other_owner(directory: Path) -> int | None:
    """Return the id of the first other user who could replace files in a directory of root.

    Checks everything on the path, as far as it exists, links included: the owner of one directory
    can replace the next.
    """
    if os.geteuid() != 0:
        return None
    ours = users_of_root()
    try:
        for path, status in _way(directory):
            if status.st_uid not in ours:
                return status.st_uid
            # In a sticky directory such as /tmp, others cannot move root's files.
            if stat.S_ISDIR(status.st_mode) and not status.st_mode & stat.S_ISVTX:
                _refuse_writable(path, status)
    except OSError as error:
        raise UnavailableError(error.strerror or str(error), where=str(directory)) from error
    return None


def make_file(path: Path) -> None:
    """Create the file, private; SQLite gives its side files the same mode and owner.

    An existing file is not opened: closing it would drop this process's locks on it.
    """
    _refuse_replaceable(path)
    try:
        make_private(path.parent)
    except StateError as error:
        raise UnavailableError(error.what, where=error.where, hint=error.hint) from error
    _refuse_writable(path.parent, path.parent.stat())
    _refuse_replaceable(path)  # another user could have created a missing directory in /tmp
    with suppress(FileExistsError):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.close(fd)
        sync_directory(path.parent)
    _refuse_left(path)


def file_identity(path: Path) -> str:
    """Return what no copy of a file has: its inode, and when that was created.

    Python has no call for the second, without which a copy may get the inode of a removed file.
    """
    status = ctypes.create_string_buffer(256)
    born = (0, 0)
    if _LIBC.statx(-100, os.fsencode(path), 0, _STATX_BTIME, status) == 0:
        born = struct.unpack_from("=qI", status, _BTIME_OFFSET)
    return ".".join(map(str, (path.stat().st_ino, *born)))


def _refuse_writable(path: Path, status: os.stat_result) -> None:
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InvalidInputError(
            f"can be written by others (mode {stat.S_IMODE(status.st_mode):04o})",
            where=str(path),
            hint=f"chmod go-w {path}",
        )


def _refuse_replaceable(path: Path) -> None:
    """Reject, as root, a file that another user can replace; see `other_owner`."""
    owner = other_owner(path.parent)
    if owner is not None:
        raise InvalidInputError(
            f"user id {owner} can replace this file, so root does not open it",
            where=str(path),
            hint="set 'buses.sqlite.path' to a path in directories of root",
        )


def _refuse_left(path: Path) -> None:
    """Reject, as root, a file that another user left in a directory that is now root's."""
    status = path.lstat()
    if os.geteuid() == 0 and status.st_uid not in users_of_root():
        raise InvalidInputError(
            f"belongs to user id {status.st_uid}, and is not opened by root",
            where=str(path),
            hint="move it away: localpuppet creates a new one",
        )


def _way(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the existing directories and links that a path leads through."""
    here = Path("/")
    rest = list(reversed(directory.absolute().parts[1:]))
    links = 0
    yield here, here.lstat()
    while rest:
        name = rest.pop()
        if name == "..":
            here = here.parent
            continue
        path = here / name
        try:
            status = path.lstat()
        except FileNotFoundError:
            return
        yield path, status
        if not stat.S_ISLNK(status.st_mode):
            here = path
            continue
        links += 1
        if links > MAX_LINKS:
            raise UnavailableError("has too many symlinks", where=str(directory))
        target = path.readlink()
        if target.is_absolute():
            here = Path("/")
        rest.extend(part for part in reversed(target.parts) if part != "/")


class Position(Value):
    """The position of a watcher; `key` is the last one of an incomplete listing, or empty."""

    after: int
    largest: int
    parts: bool = False
    key: str = ""


class WatchSnapshot(Value):
    """The changes that a watcher finds in one look, by revision, and whether there are more."""

    changes: tuple[Change, ...]
    position: Position
    more: bool


SCHEMA = 1
APPLICATION = 0x6C707562  # "lpub" in the file's header: identifies the file
# A watcher that missed more removals than this gets a listing.
MAX_REMOVALS = 10_000
# Maximum number of entries that one write prunes, so that every write is short.
PRUNE = 500
# Changes of one look, and entries of a part: bounds memory, not the result.
LOOK = 64
_TABLES = """
CREATE TABLE counter (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    revision INTEGER NOT NULL,
    compacted INTEGER NOT NULL,
    boot TEXT NOT NULL
);
CREATE TABLE entries (
    revision INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    value BLOB NOT NULL,
    ttl REAL,
    expires REAL
);
CREATE INDEX entries_expires ON entries (expires) WHERE expires IS NOT NULL;
CREATE TABLE removals (revision INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE);
"""
# Names its own file: a copy that was put back from a backup is another store.
_STORE = """
CREATE TABLE IF NOT EXISTS store (
    id INTEGER PRIMARY KEY CHECK (id = 1), identity TEXT NOT NULL, born REAL NOT NULL
)
"""
_ALIVE = "(expires IS NULL OR expires > :now)"
# SQLite stores the length in the row's header, so it does not read the larger values.
_OF_USE = "length(value) <= :largest"
_BELOW = f"FROM entries WHERE key > :low AND key < :high AND {_ALIVE} AND {_OF_USE}"
# The unary plus keeps SQLite from using the index on keys: the newest revisions are few.
_CHANGES = f"""
SELECT * FROM (
    SELECT revision, key, value FROM entries
    WHERE revision > :after AND +key > :low AND +key < :high AND {_ALIVE} AND {_OF_USE}
    ORDER BY revision LIMIT {LOOK})
UNION ALL SELECT * FROM (
    SELECT revision, key, NULL FROM removals
    WHERE revision > :after AND +key > :low AND +key < :high
    ORDER BY revision LIMIT {LOOK})
ORDER BY revision LIMIT {LOOK}
"""  # noqa: S608 - constants


class LockedError(Exception):
    """Another process is writing; try again soon."""


class SqliteFile:
    """An open database; its file and directory are created if missing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._problems():
            make_file(path)
            self._connection = sqlite3.connect(
                path, timeout=0, isolation_level=None, cached_statements=32
            )
        try:
            with self._problems():
                self._prepare()
                self._file = _identity(path)
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        self._connection.close()

    def replaced(self) -> bool:
        """Return whether the path now has another file, or none."""
        try:
            return _identity(self.path) != self._file
        except OSError:
            return True

    def born(self) -> float:
        """Return when this file began, in seconds since 1970."""
        with self._problems():
            ((born,),) = self._connection.execute("SELECT born FROM store").fetchall()
            return float(born)

    def get(self, key: str) -> KeyValueEntry | None:
        with self._problems():
            row = self._connection.execute(
                f"SELECT value, revision FROM entries WHERE key = :key AND {_ALIVE}",  # noqa: S608
                {"key": key, "now": seconds_since_boot()},
            ).fetchone()
            return None if row is None else KeyValueEntry(key=key, value=row[0], revision=row[1])

    def list(self, prefix: str, largest: int) -> KeyListing:
        """Return the entries below a prefix, except larger values."""
        with self._problems(), self._transaction("DEFERRED"):
            return KeyListing(entries=self._below(prefix, largest), revision=self._counter()[0])

    def look(self, prefix: str, position: Position) -> WatchSnapshot:
        """Return the changes below a prefix after a position; a listing if they are unknown."""
        with self._problems(), self._transaction("DEFERRED"):
            revision, compacted = self._counter()
            if position.key or position.after < compacted or position.after > revision:
                return self._listed(prefix, position, revision)
            if position.after == revision:
                return WatchSnapshot(changes=(), position=position, more=False)
            rows = self._connection.execute(
                _CHANGES,
                {
                    **_range(prefix),
                    "after": position.after,
                    "largest": position.largest,
                    "now": seconds_since_boot(),
                },
            ).fetchall()
        changes = tuple(
            KeyRemoval(key=key, revision=at)
            if value is None
            else KeyWrite(entry=KeyValueEntry(key=key, value=value, revision=at))
            for at, key, value in rows
        )
        more = len(rows) == LOOK
        after = rows[-1][0] if more else revision
        return WatchSnapshot(changes=changes, position=replace(position, after=after), more=more)

    def write(
        self, key: str, value: bytes, *, ttl: float | None, expected: int | None
    ) -> int | None:
        """Write a value for `ttl` seconds; return its revision.

        If the key does not have the revision `expected` (0 for none) now, it returns `None`.
        """
        with self._problems(), self._transaction("IMMEDIATE"):
            self._prune()
            if expected is not None and self._revision(key) != expected:
                return None
            revision = self._next()
            self._connection.execute("DELETE FROM entries WHERE key = ?", (key,))
            self._connection.execute("DELETE FROM removals WHERE key = ?", (key,))
            self._connection.execute(
                "INSERT INTO entries (revision, key, value, ttl, expires) VALUES (?, ?, ?, ?, ?)",
                (revision, key, value, ttl, None if ttl is None else seconds_since_boot() + ttl),
            )
            return revision

    def remove(self, key: str, expected: int) -> bool:
        """Remove a key that has the expected revision; return whether it had."""
        with self._problems(), self._transaction("IMMEDIATE"):
            self._prune()
            if self._revision(key) != expected:
                return False
            self._forget(key)
            self._compact()
            return True

    def prune(self) -> bool:
        """Remove expired entries; return whether there were any."""
        with self._problems():
            deleted = self._connection.execute(
                "SELECT 1 FROM entries WHERE expires <= ? LIMIT 1", (seconds_since_boot(),)
            ).fetchone()
            if deleted is None:
                return False
            with self._transaction("IMMEDIATE"):
                self._prune()
            return True

    def _prepare(self) -> None:
        execute = self._connection.execute
        execute("PRAGMA mmap_size = 0")  # a damaged disk is then an error, not a SIGBUS
        execute("PRAGMA temp_store = MEMORY")  # temporary files may have no place
        with self._transaction("DEFERRED"):  # a consistent view while another process creates it
            version = self._version()
        if version == 0:
            execute("PRAGMA journal_mode = WAL")
            with self._transaction("IMMEDIATE"):
                if self._version() == 0:  # another process may have been faster
                    self._make_tables()
        execute("PRAGMA synchronous = FULL")
        execute(f"PRAGMA journal_size_limit = {8 * 1024 * 1024}")
        # Detects a read-only disk now, not at the first write.
        with self._transaction("IMMEDIATE"):
            self._begin()
            boot = boot_id()
            if execute("SELECT boot FROM counter").fetchone() != (boot,):
                execute(
                    "UPDATE entries SET expires = ? + ttl WHERE ttl IS NOT NULL",
                    (seconds_since_boot(),),
                )
                execute("UPDATE counter SET boot = ?", (boot,))

    def _begin(self) -> None:
        """Begin a new store, if this file is new or a copy."""
        execute = self._connection.execute
        execute(_STORE)
        identity, now = file_identity(self.path), time.time()
        if execute("SELECT identity FROM store").fetchone() != (identity,):
            execute("INSERT OR REPLACE INTO store VALUES (1, ?, ?)", (identity, now))
            execute("UPDATE counter SET revision = max(revision + 1, ?)", (int(now * 1_000_000),))
            execute("UPDATE counter SET compacted = revision")

    def _version(self) -> int:
        execute = self._connection.execute
        ((version,),) = execute("PRAGMA user_version").fetchall()
        ((application,),) = execute("PRAGMA application_id").fetchall()
        ((tables,),) = execute("SELECT count(*) FROM sqlite_master").fetchall()
        if (application, version) == (APPLICATION, SCHEMA):
            return SCHEMA
        if not (application or version or tables):
            return 0
        if application == APPLICATION:
            raise UnavailableError(
                f"has schema {version}; this localpuppet needs {SCHEMA}",
                where=str(self.path),
                hint="update localpuppet, or move the file away",
            )
        raise UnavailableError(
            "is a database of another program",
            where=str(self.path),
            hint="name another path for the bus",
        )

    def _make_tables(self) -> None:
        for statement in _TABLES.split(";"):
            self._connection.execute(statement)
        self._connection.execute(
            "INSERT INTO counter (id, revision, compacted, boot) VALUES (1, 0, 0, ?)", (boot_id(),)
        )
        self._connection.execute(f"PRAGMA application_id = {APPLICATION}")
        self._connection.execute(f"PRAGMA user_version = {SCHEMA}")

    def _revision(self, key: str) -> int:
        row = self._connection.execute(
            f"SELECT revision FROM entries WHERE key = :key AND {_ALIVE}",  # noqa: S608
            {"key": key, "now": seconds_since_boot()},
        ).fetchone()
        return 0 if row is None else int(row[0])

    def _below(
        self, prefix: str, largest: int, *, low: str = "", most: int = -1
    ) -> tuple[KeyValueEntry, ...]:
        """Return entries below a prefix, after the key `low`; at most `most`, or all for -1."""
        rows = self._connection.execute(
            f"SELECT key, value, revision {_BELOW} ORDER BY key LIMIT :most",
            _range(prefix)
            | ({"low": low} if low else {})
            | {"largest": largest, "now": seconds_since_boot(), "most": most},
        )
        listed = ListingEntries(prefix, str(self.path))
        listed.add(KeyValueEntry(key=key, value=value, revision=at) for key, value, at in rows)
        return tuple(listed.entries)

    def _listed(self, prefix: str, position: Position, revision: int) -> WatchSnapshot:
        """Return a listing, or its next part.

        Parts are read at several moments, and all have the revision of the first: what is written
        meanwhile follows them, perhaps for the second time.
        """
        after = position.after if position.key else revision
        most = LOOK if position.parts else -1
        entries = self._below(prefix, position.largest, low=position.key, most=most)
        more = len(entries) == most
        following = replace(position, after=after, key=entries[-1].key if more else "")
        listing = KeyListing(entries=entries, revision=after, more=more)
        return WatchSnapshot(changes=(listing,), position=following, more=more)

    def _counter(self) -> tuple[int, int]:
        ((revision, compacted),) = self._connection.execute(
            "SELECT revision, compacted FROM counter"
        ).fetchall()
        return int(revision), int(compacted)

    def _next(self) -> int:
        self._connection.execute("UPDATE counter SET revision = revision + 1")
        return self._counter()[0]

    def _forget(self, key: str) -> None:
        self._connection.execute("DELETE FROM entries WHERE key = ?", (key,))
        self._connection.execute(
            "INSERT OR REPLACE INTO removals (revision, key) VALUES (?, ?)", (self._next(), key)
        )

    def _prune(self) -> None:
        expired = self._connection.execute(
            "SELECT key FROM entries WHERE expires <= ? ORDER BY expires LIMIT ?",
            (seconds_since_boot(), PRUNE),
        ).fetchall()
        for (key,) in expired:
            self._forget(key)
        if expired:
            self._compact()

    def _compact(self) -> None:
        row = self._connection.execute(
            "SELECT revision FROM removals ORDER BY revision DESC LIMIT 1 OFFSET ?",
            (MAX_REMOVALS,),
        ).fetchone()
        if row is not None:
            self._connection.execute("DELETE FROM removals WHERE revision <= ?", row)
            self._connection.execute("UPDATE counter SET compacted = ?", row)

    @contextmanager
    def _transaction(self, kind: str) -> Generator[None, None, None]:
        self._connection.execute(f"BEGIN {kind}")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # some errors have rolled back already
                self._connection.execute("ROLLBACK")
            raise

    @contextmanager
    def _problems(self) -> Generator[None, None, None]:
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise LockedError from error
            raise _unavailable(error, code, self.path) from error
        except OSError as error:
            raise UnavailableError(error.strerror or str(error), where=str(self.path)) from error


def _unavailable(error: sqlite3.Error, code: int, path: Path) -> UnavailableError:
    what, hint = {
        sqlite3.SQLITE_NOTADB: ("is not a SQLite database", "name another path, or move it away"),
        sqlite3.SQLITE_CORRUPT: ("is damaged", "move it away: localpuppet creates a new one"),
        sqlite3.SQLITE_READONLY: ("cannot be written", "check the owner, and the disk's mount"),
        sqlite3.SQLITE_CANTOPEN: ("cannot be opened", "check the owner, and the disk's mount"),
        sqlite3.SQLITE_FULL: ("cannot be written: the disk is full", "make room"),
        sqlite3.SQLITE_IOERR: ("cannot be read or written: the disk failed", "see the kernel log"),
    }.get(code, (f"cannot be used: {error}", ""))
    kind = FullError if code == sqlite3.SQLITE_FULL else UnavailableError
    return kind(what, where=str(path), hint=hint)


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _range(prefix: str) -> dict[str, str | float]:
    return {"low": prefix, "high": prefix[:-1] + "0"}  # "0" is what follows "/"
