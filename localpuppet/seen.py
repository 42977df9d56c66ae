"""Ids that were taken once and are not taken again, on disk.

Owns: `seen.sqlite` in the state directory. Refuses to know: what the ids are of.

Invariants: an id is on the disk before `add` says that it is new, so that neither a kill -9 nor
a power cut makes it new again; of several processes that add the same id, one is told that it is
new; nothing is forgotten before its time; and whatever goes wrong (damage, no room, too many ids)
is an error and never "new".
"""

import os
import sqlite3
import threading
from pathlib import Path

from localpuppet.errors import StateError
from localpuppet.files import make_private, state_problem
from localpuppet.ports import Clock

LIMIT = 100_000
# How long another process may hold the file, in seconds: it holds it for one write at a time.
PATIENCE = 10.0
_VERSION = 1
_TABLE = """
CREATE TABLE IF NOT EXISTS seen (
    kind TEXT NOT NULL, id TEXT NOT NULL, until INTEGER NOT NULL, PRIMARY KEY (kind, id)
) STRICT, WITHOUT ROWID
"""


class Seen:
    """A durable set of ids, each with the time until which it is kept.

    Args:
        path: The SQLite file; made when first needed, 0600.
        clock: Tells what may be forgotten.
        limit: The most ids that are kept. Beyond it nothing new is taken until some expire: to
            forget the oldest would open the door that this closes.
    """

    def __init__(self, path: Path, clock: Clock, *, limit: int = LIMIT) -> None:
        self._path = path
        self._clock = clock
        self._limit = limit
        self._lock = threading.Lock()
        self._opened: sqlite3.Connection | None = None
        self._opened_inode = 0

    def add(self, kind: str, identifier: str, until: int) -> bool:
        """Remember an id; return whether it is new.

        Args:
            kind: What it is the id of; ids of different kinds do not meet.
            identifier: The id.
            until: Seconds since 1970; it is remembered at least so long.

        Raises:
            StateError: It cannot be told, or cannot be remembered.
        """
        with self._lock:
            try:
                return self._add(self._connection(), kind, identifier, until)
            except sqlite3.Error as error:
                self._close()
                raise self._problem(error) from error

    def close(self) -> None:
        """Close the file; the next `add` opens it again."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _add(self, connection: sqlite3.Connection, kind: str, identifier: str, until: int) -> bool:
        now = int(self._clock.now().timestamp())
        connection.execute("BEGIN IMMEDIATE")
        try:
            added = connection.execute(
                "INSERT OR IGNORE INTO seen VALUES (?, ?, ?)", (kind, identifier, until)
            ).rowcount
            if added:
                connection.execute(
                    "DELETE FROM seen WHERE until < ? AND NOT (kind = ? AND id = ?)",
                    (now, kind, identifier),
                )
                (count,) = connection.execute("SELECT count(*) FROM seen").fetchone()
                if count > self._limit:
                    raise StateError(
                        f"{self._limit} ids are remembered already: nothing more is taken",
                        where=str(self._path),
                        hint="each is kept until its message has expired; who sends so many?",
                    )
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return added == 1

    def _connection(self) -> sqlite3.Connection:
        if self._opened is not None and self._inode() != self._opened_inode:
            self._close()  # somebody moved it away: what it holds now is lost with the process
        if self._opened is None:
            make_private(self._path.parent)
            self._create()
            self._opened_inode = self._inode()
            connection = sqlite3.connect(
                self._path, timeout=PATIENCE, isolation_level=None, check_same_thread=False
            )
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._opened = connection
        return self._opened

    def _inode(self) -> int:
        try:
            return self._path.stat().st_ino
        except FileNotFoundError:
            return 0

    def _create(self) -> None:
        """Make the file before SQLite does, which would follow the umask."""
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            os.close(fd)
        except OSError as error:
            raise state_problem(error, self._path) from error

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version not in (0, _VERSION):
            raise StateError(
                f"was written by another version of localpuppet (format {version})",
                where=str(self._path),
                hint="update localpuppet",
            )
        connection.execute(_TABLE)
        connection.execute("CREATE INDEX IF NOT EXISTS until ON seen (until)")
        connection.execute(f"PRAGMA user_version = {_VERSION}")

    def _problem(self, error: sqlite3.Error) -> StateError:
        """Return what to tell; the file stays as it is for somebody to look at."""
        if isinstance(error, sqlite3.OperationalError):
            return StateError(f"cannot be used: {error}", where=str(self._path))
        return StateError(
            f"is damaged: {error}",
            where=str(self._path),
            hint="move it away when the last signed message is older than two hours",
        )
