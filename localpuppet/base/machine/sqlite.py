"""SQLite, for small files of durable state: the only module that imports it.

- Debian 12 has the oldest supported version: queries need its JSON operators, FULL JOIN and
  RETURNING. Others import it from here: `from localpuppet.base.machine.sqlite import sqlite3`.
- Committed data survives a kill -9 and a power cut.
- An unusable file is an error, and never looks empty.
- A reader writes nothing to a file of this format, and works on a full disk.

`IdTable` stores ids in a table `seen`, and the number of ids of each owner:

- An id is not deleted before its time, and the newest ids not even then, because the clock may be
  set back.
- No call reads the whole table.
"""

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.machine.files import add_durably, disk_errors, make_private, remove
from localpuppet.base.value import Value

if TYPE_CHECKING:
    import sqlite3 as sqlite3
else:
    try:
        # In packages for systems whose own SQLite is too old (docs/adr/0067).
        from pysqlite3 import dbapi2 as sqlite3
    except ImportError:
        import sqlite3

Connection = sqlite3.Connection
OLDEST = (3, 40, 1)


def check_version(found: tuple[int, ...]) -> None:
    """Reject a version of SQLite that is too old."""
    if found < OLDEST:
        shown, oldest = (".".join(map(str, version)) for version in (found, OLDEST))
        raise StateError(
            f"version {shown} is too old: localpuppet needs {oldest}",
            where="SQLite",
            hint="update the system's libsqlite3",
        )


check_version(sqlite3.sqlite_version_info)


# Seconds to wait for another process: it locks the file for one write at a time.
PATIENCE = 10.0
# The limit of SQLite's memory in bytes, for all connections of the process together. A statement
# that needs more raises MemoryError, which is no `sqlite3.Error`.
MAX_HEAP = 256 * 1024 * 1024
# The size in bytes to which a large journal shrinks again.
MAX_JOURNAL = 4 * 1024 * 1024
# Suffixes of SQLite's side files, which it would apply to any other file of that name.
_BESIDE = ("-journal", "-wal", "-shm")
# The two header bytes that announce a write-ahead log (fileformat2.html, 1.3).
_LOGGED, _HAS_LOG = slice(18, 20), b"\x02\x02"


class DamagedError(StateError):
    """The file is no longer a database; freeing disk space does not help."""


class EarlierFormatError(StateError):
    """An earlier version wrote the file, in a format that this version does not read."""


class LaterFormatError(StateError):
    """A later version wrote the file, in a format that this version does not know."""


class Format(Value):
    """The format of a file in one version of localpuppet.

    Attributes:
        conversions: Statements that convert a file of an earlier format, by its number; they run
            before `tables`.
    """

    tables: str
    version: int
    conversions: Mapping[int, str] = field(default_factory=dict)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Database:
    """One SQLite file; closed at the latest with the object.

    Attributes:
        path: The file; created 0600 at first use, or by `make`.
        damaged: What to do about a damaged file, for the message.
        shrinks: Whether `PRAGMA incremental_vacuum` frees pages of a new file.
        only_made: Whether only `make` creates the file: using a missing one is then an error.
    """

    path: Path
    form: Format
    _: KW_ONLY
    damaged: str
    shrinks: bool = False
    only_made: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _opened: sqlite3.Connection | None = field(default=None, init=False)
    _opened_inode: int = field(default=0, init=False)
    _closing: Callable[[], object] = field(default=lambda: None, init=False)

    def make(self, fill: Callable[[sqlite3.Connection], object]) -> bool:
        """Create the file with its content, all at once.

        Deletes side files left over from a file that was moved away. The caller holds a lock, so
        that only one process creates the file at a time; others may read the result.

        Returns:
            Whether this call created the file; an existing one is left unchanged.
        """
        from tempfile import TemporaryDirectory  # 0.8 MiB

        with self._filled(fill) as memory, TemporaryDirectory() as directory:
            # pysqlite3 has no `serialize`.
            made = Path(directory, "made")
            try:
                memory.execute("VACUUM INTO ?", (str(made),))
            except sqlite3.Error as error:
                raise self.problem(error) from error
            data = bytearray(made.read_bytes())
        # The first process to open the file has nothing to change, which would lock others out.
        data[_LOGGED] = _HAS_LOG
        make_private(self.path.parent)
        if self._inode():
            return False
        self._clear_beside()
        return add_durably(self.path, bytes(data))

    def replace(self, fill: Callable[[sqlite3.Connection], object]) -> None:
        """Replace the content, all at once; a file that cannot be opened is deleted before."""
        with self._filled(fill) as memory:
            with suppress(DamagedError, EarlierFormatError), self.use() as connection:
                memory.backup(connection)
                return
            self.remove()
            with self.use() as connection:
                memory.backup(connection)

    @contextmanager
    def _filled(self, fill: Callable[[sqlite3.Connection], object]) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as memory:
            memory.executescript(self.form.tables)
            memory.execute(f"PRAGMA user_version = {self.form.version}")
            fill(memory)
            yield memory

    def _clear_beside(self) -> None:
        for suffix in _BESIDE:
            remove(self.path.with_name(self.path.name + suffix))

    @contextmanager
    def use(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection, for one thread at a time.

        Raises:
            DamagedError: The file is no longer a database.
        """
        with self._lock:
            try:
                yield self._connection()
            except sqlite3.Error as error:
                self._close()
                raise self.problem(error) from error
            except MemoryError as error:
                raise StateError("cannot be used: out of memory", where=str(self.path)) from error

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection in a transaction: durable when the block ends, or rolled back."""
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
    def snapshot(
        self, prepare: Callable[[sqlite3.Connection], None] = lambda _: None
    ) -> Iterator[sqlite3.Connection]:
        """Yield a second connection that sees the file as it is now and no later write.

        Args:
            prepare: Called before the transaction; it may attach files and create temporary views.
        """
        with self.use():
            pass  # creates the file and its tables
        try:
            connection = self._connect()
            try:
                connection.execute(f"PRAGMA hard_heap_limit = {MAX_HEAP}")
                connection.execute("PRAGMA temp_store = MEMORY")
                prepare(connection)
                connection.execute("PRAGMA query_only = ON")
                connection.execute("BEGIN")
                yield connection
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise self.problem(error) from error

    def remove(self) -> None:
        """Delete the file with its content; the next use creates a new one."""
        with self._lock:
            self._close()
            # The file first: without it, no reader opens the side files and finds them damaged.
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
            self._close()  # the file was moved away: data written to it now would be lost
        if self._opened is None:
            if not self.only_made:
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
        """Open the file; SQLite creates none if another process has just deleted it."""
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
        """Create the file before SQLite does, which would follow the umask.

        An existing file is not opened: closing it would drop the locks of another connection of
        this process. Another process that ends could then delete the log that this connection
        writes to (https://www.sqlite.org/howtocorrupt.html, 2.2).
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with disk_errors(self.path):
            try:
                os.close(os.open(self.path, flags, 0o600))
            except FileExistsError:
                if self.path.is_symlink():
                    raise

    def _prepare(self, connection: sqlite3.Connection) -> None:
        version = _version(connection)
        if self.shrinks and not version:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # before anything is in the file
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {MAX_JOURNAL}")
        if version == self.form.version:
            connection.executescript(self.form.tables)
            return
        connection.execute("BEGIN IMMEDIATE")
        version = _version(connection)  # another process may have converted the file meanwhile
        if version not in (0, self.form.version, *self.form.conversions):
            earlier = version < self.form.version
            raise (EarlierFormatError if earlier else LaterFormatError)(
                f"was written by another version of localpuppet (format {version})",
                where=str(self.path),
                hint=self.damaged if earlier else "update localpuppet",
            )
        script = f"{self.form.conversions.get(version, '')} {self.form.tables};"
        for statement in _statements(f"{script} PRAGMA user_version = {self.form.version}; COMMIT"):
            connection.execute(statement)

    @contextmanager
    def damage_errors(self, noun: str) -> Iterator[None]:
        """Raise `DamagedError` for a stored text of another form; `noun` says what it is."""
        try:
            yield
        except (ValueError, InvalidInputError, StateError) as error:
            what = f"holds a damaged {noun}: {error}"
            raise DamagedError(what, where=str(self.path), hint=self.damaged) from error

    def problem(self, error: sqlite3.Error) -> StateError:
        """Return the error to report; the file is left unchanged for inspection."""
        if isinstance(error, sqlite3.OperationalError):
            return StateError(f"cannot be used: {error}", where=str(self.path))
        return DamagedError(f"is damaged: {error}", where=str(self.path), hint=self.damaged)


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _statements(script: str) -> Iterator[str]:
    """Yield the statements of a script: `executescript` would end the transaction first."""
    statement = ""
    for part in script.split(";"):
        statement += f"{part};"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


# Number of ids to keep whatever the clock says.
ALWAYS = 10_000
TABLES = """
CREATE TABLE IF NOT EXISTS seen (
    owner TEXT NOT NULL, id TEXT NOT NULL, until INTEGER NOT NULL, PRIMARY KEY (owner, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS seen_by_end ON seen (until);
CREATE TABLE IF NOT EXISTS owners (
    owner TEXT PRIMARY KEY, number INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
"""
_FORGET = """
DELETE FROM seen WHERE (owner, id) IN (
    SELECT owner, id FROM seen WHERE until < ? ORDER BY until LIMIT ?
) RETURNING owner
"""


class IdTable:
    """The table; each call runs within a transaction of the caller.

    Args:
        always: Number of newest ids to keep after their time.
    """

    def __init__(self, *, always: int = ALWAYS) -> None:
        self._always = always

    def has(self, connection: sqlite3.Connection, owner: str, identifier: str) -> bool:
        exists = connection.execute(
            "SELECT 1 FROM seen WHERE owner = ? AND id = ?", (owner, identifier)
        )
        return exists.fetchone() is not None

    def add(self, connection: sqlite3.Connection, owner: str, identifier: str, until: int) -> None:
        """Store an id until a time in seconds since 1970; a known id keeps the later time."""
        added = connection.execute(
            "INSERT INTO seen VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (owner, identifier, until)
        ).rowcount
        if added:
            connection.execute(
                "INSERT INTO owners VALUES (?, 1)"
                " ON CONFLICT (owner) DO UPDATE SET number = number + 1",
                (owner,),
            )
        else:
            connection.execute(
                "UPDATE seen SET until = max(until, ?) WHERE owner = ? AND id = ?",
                (until, owner, identifier),
            )

    def of(self, connection: sqlite3.Connection, owner: str) -> int:
        """Return the number of ids of an owner."""
        number_row = connection.execute(
            "SELECT number FROM owners WHERE owner = ?", (owner,)
        ).fetchone()
        return 0 if number_row is None else int(number_row[0])

    def total(self, connection: sqlite3.Connection) -> int:
        """Return the number of all ids."""
        return int(connection.execute("SELECT coalesce(sum(number), 0) FROM owners").fetchone()[0])

    def forget(self, connection: sqlite3.Connection, now: int, *, more: int = 0) -> None:
        """Delete expired ids, except the newest.

        Args:
            more: Number of ids about to be added: they count among the newest.
        """
        self._forget(connection, now, self.total(connection) + more - self._always)

    def forget_all(self, connection: sqlite3.Connection, now: int) -> None:
        """Delete all expired ids, to make room."""
        self._forget(connection, now, self.total(connection))

    def _forget(self, connection: sqlite3.Connection, now: int, most: int) -> None:
        if most <= 0:
            return
        gone = [row[0] for row in connection.execute(_FORGET, (now, most))]
        for owner in set(gone):
            connection.execute(
                "UPDATE owners SET number = number - ? WHERE owner = ?", (gone.count(owner), owner)
            )
        if gone:
            connection.execute("DELETE FROM owners WHERE number <= 0")
