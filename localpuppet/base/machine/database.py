"""Small SQLite files for what must survive: one place for how they are opened and what goes wrong.

Owns: permissions, durability, the format's number. Refuses to know: what is in them. Invariants:
what was committed survives a kill -9 and a power cut; a file that cannot be used is an error, and
never looks empty; who only reads a file of this format writes nothing, and can on a full disk.
"""

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from localpuppet.base.errors import StateError
from localpuppet.base.machine.files import add_durably, make_private, remove, state_problem

# How long another process may hold the file, in seconds: it holds it for one write at a time.
PATIENCE = 10.0
# What SQLite has beside a file, and would take for a part of any other file of that name.
_BESIDE = ("-journal", "-wal", "-shm")
# The two bytes of a file's head that say that it has a write-ahead log (fileformat2.html, 1.3).
_LOGGED, _HAS_LOG = slice(18, 20), b"\x02\x02"


class DamagedError(StateError):
    """The file is not a database any more, whatever the disk has room for."""


class EarlierFormatError(StateError):
    """The file was written by an earlier version, and nothing makes this format of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """What is in a file, by one version of us.

    Attributes:
        tables: What makes its tables where they are not there yet.
        version: The format's number.
        upgrades: Earlier number → the statements that make this format of that one.
    """

    tables: str
    version: int
    upgrades: Mapping[int, Sequence[str]] = field(default_factory=dict)


class Database:
    """One SQLite file; it is closed with the object at the latest.

    Args:
        path: The file; made when first needed, or by `make`, 0600.
        form: What is in it.
        damaged: What to do about a damaged file, for the message.
        shrinks: Whether `PRAGMA incremental_vacuum` gives free pages of a new file back.
        only_made: Whether nothing but `make` makes the file: to use one that is not there is an
            error then.
    """

    def __init__(
        self,
        path: Path,
        form: Format,
        *,
        damaged: str,
        shrinks: bool = False,
        only_made: bool = False,
    ) -> None:
        self.path = path
        self._format = form
        self._damaged = damaged
        self._shrinks = shrinks
        self._only_made = only_made
        self._lock = threading.Lock()
        self._opened: sqlite3.Connection | None = None
        self._opened_inode = 0
        self._closing: Callable[[], object] = lambda: None

    def make(self, fill: Callable[[sqlite3.Connection], object]) -> bool:
        """Make the file with something in it: it is there with all of that, or it is not there.

        What a file of this name left beside it, which somebody moved away, goes. One process at a
        time makes the file: the caller has a lock for that. Others may read it from then on.

        Args:
            fill: Writes what is to be in it.

        Returns:
            Whether we made it: one that is there stays as it is.
        """
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as memory:
            memory.executescript(self._format.tables)
            memory.execute(f"PRAGMA user_version = {self._format.version}")
            fill(memory)
            data = bytearray(memory.serialize())
        # Who opens the file first has nothing to change then, which would keep others out.
        data[_LOGGED] = _HAS_LOG
        make_private(self.path.parent)
        if self._inode():
            return False
        self._clear_beside()
        return add_durably(self.path, bytes(data))

    def _clear_beside(self) -> None:
        for suffix in _BESIDE:
            remove(self.path.with_name(self.path.name + suffix))

    @contextmanager
    def use(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection, for one thread at a time.

        Raises:
            DamagedError: It never will be again.
        """
        with self._lock:
            try:
                yield self._connection()
            except sqlite3.Error as error:
                self._close()
                raise self.problem(error) from error

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection in a transaction: on the disk when the block ends, or undone.

        Raises:
            StateError: The file cannot be used; nothing was done.
        """
        with self.use() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """Yield a second connection, which sees the file as it is now and no later write."""
        with self.use():
            pass  # the file is there, and has its tables
        try:
            connection = self._connect()
            try:
                connection.execute("PRAGMA query_only = ON")
                connection.execute("BEGIN")
                yield connection
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise self.problem(error) from error

    def remove(self) -> None:
        """Take the file away, whatever is in it; the next use makes a new one.

        Raises:
            StateError: It cannot be taken away.
        """
        with self._lock:
            self._close()
            # The file first: without it nobody reads the others, which would be found damaged.
            remove(self.path)
            self._clear_beside()

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        self._closing()
        self._opened = None

    def _connection(self) -> sqlite3.Connection:
        if self._opened is not None and self._inode() != self._opened_inode:
            self._close()  # somebody moved it away: what it holds now is lost with the process
        if self._opened is None:
            if not self._only_made:
                make_private(self.path.parent)
                self._create()
            elif not self._inode():
                raise StateError("is not there", where=str(self.path))
            self._opened_inode = self._inode()
            connection = self._connect(check_same_thread=False)
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._opened = connection
            self._closing = weakref.finalize(self, connection.close)
        return self._opened

    def _connect(self, *, check_same_thread: bool = True) -> sqlite3.Connection:
        """Open the file; SQLite makes none where another process has just taken it away."""
        return sqlite3.connect(
            f"{self.path.absolute().as_uri()}?mode=rw",
            uri=True,
            timeout=PATIENCE,
            isolation_level=None,
            check_same_thread=check_same_thread,
        )

    def _inode(self) -> int:
        try:
            return self.path.stat().st_ino
        except FileNotFoundError:
            return 0

    def _create(self) -> None:
        """Make the file before SQLite does, which would follow the umask.

        A file that is there is not opened: closing it would take away the locks that another
        connection of this process has, and another process, which ends, would then remove the log
        that this connection writes to (https://www.sqlite.org/howtocorrupt.html, 2.2).
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            os.close(os.open(self.path, flags, 0o600))
        except FileExistsError as error:
            if self.path.is_symlink():
                raise state_problem(error, self.path) from error
        except OSError as error:
            raise state_problem(error, self.path) from error

    def _prepare(self, connection: sqlite3.Connection) -> None:
        version = _version(connection)
        if self._shrinks and not version:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # before anything is in it
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        if version in self._format.upgrades:
            version = self._upgrade(connection)
        if version not in (0, self._format.version):
            earlier = version < self._format.version
            raise (EarlierFormatError if earlier else StateError)(
                f"was written by another version of localpuppet (format {version})",
                where=str(self.path),
                hint=self._damaged if earlier else "update localpuppet",
            )
        connection.executescript(self._format.tables)
        if version != self._format.version:
            connection.execute(f"PRAGMA user_version = {self._format.version}")

    def _upgrade(self, connection: sqlite3.Connection) -> int:
        """Bring the file to this format, in one transaction; return its number then."""
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Another process may have been faster.
            for statement in self._format.upgrades.get(_version(connection), ()):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {self._format.version}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return _version(connection)

    def problem(self, error: sqlite3.Error) -> StateError:
        """Return what to tell of an error; the file stays as it is for somebody to look at."""
        if isinstance(error, sqlite3.OperationalError):
            return StateError(f"cannot be used: {error}", where=str(self.path))
        return DamagedError(f"is damaged: {error}", where=str(self.path), hint=self._damaged)


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
