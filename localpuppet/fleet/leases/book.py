"""The leases of this node's agent on disk, so that the next agent can resume them.

The file is `agent/leases.sqlite` in the state directory. Entries survive a kill -9 and a power cut;
a monotonic time of another boot is never used. Whether an entry is still true on the bus is not
known here.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from localpuppet.base.machine.database import Database, Format
from localpuppet.base.machine.ports import ProcessId
from localpuppet.base.value import Value

_VERSION = 2
_TABLES = """
CREATE TABLE IF NOT EXISTS leases (
    name TEXT PRIMARY KEY, value BLOB NOT NULL, ttl REAL NOT NULL, until REAL NOT NULL,
    boot TEXT NOT NULL, is_lock INTEGER NOT NULL, run TEXT, pid INTEGER, started INTEGER
) STRICT, WITHOUT ROWID;
"""


class LockUser(Value):
    """The run or process that relies on a lock.

    Attributes:
        run: The run that it is part of, if that has an id.
        process: The process that requested the lock, if known.
    """

    run: str | None = None
    process: ProcessId | None = None

    def is_same(self, other: "LockUser") -> bool:
        """Return whether both are the same run or, without a run, the same process."""
        if self.run is not None or other.run is not None:
            return self.run == other.run
        return self.process == other.process

    def __str__(self) -> str:
        """Return `run ID` or `process 123`."""
        if self.run is not None:
            return f"run {self.run}"
        return "an unknown process" if self.process is None else f"process {self.process.pid}"


class LeaseRecord(Value):
    """A lease in the book.

    Attributes:
        name: Its name.
        value: Its value on the bus, unique for a session.
        ttl: Seconds for which a renewal is valid.
        until: Monotonic seconds until which the last renewal is valid; 0 after a reboot.
        user: The user of the lock; `None` for a leader's lease.
    """

    name: str
    value: bytes
    ttl: float
    until: float
    user: LockUser | None


class LeaseStorage(Protocol):
    """The port of `LeaseBook`."""

    def note(self, noted: LeaseRecord) -> None:
        """Write a lease, or overwrite it."""

    def strike(self, name: str) -> None:
        """Delete a lease."""

    def entries(self) -> Sequence[LeaseRecord]:
        """Return all leases."""


class LeaseBook:
    """The book, on disk.

    Args:
        path: The SQLite file; created at first use, 0600.
        boot_id: The id of this boot of the machine.
    """

    def __init__(self, path: Path, *, boot_id: str) -> None:
        self._database = Database(
            path,
            Format(tables=_TABLES, version=_VERSION),
            damaged="move it away: leases of an earlier agent then expire",
        )
        self._boot_id = boot_id

    def note(self, noted: LeaseRecord) -> None:
        """Write a lease, or overwrite it."""
        user = noted.user or LockUser()
        process = user.process
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    noted.name,
                    noted.value,
                    noted.ttl,
                    noted.until,
                    self._boot_id if process is None else process.boot_id,
                    noted.user is not None,
                    user.run,
                    process and process.pid,
                    process and process.started,
                ),
            )

    def strike(self, name: str) -> None:
        """Delete a lease."""
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM leases WHERE name = ?", (name,))

    def entries(self) -> list[LeaseRecord]:
        """Return all leases."""
        if not self._database.path.exists():
            return []  # most agents never have a lease
        with self._database.use() as connection:
            rows = connection.execute("SELECT * FROM leases ORDER BY name").fetchall()
        return [self._noted(row) for row in rows]

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        self._database.close()

    def _noted(self, row: tuple[Any, ...]) -> LeaseRecord:
        name, value, ttl, until, boot, is_lock, run, pid, started = row
        process = None
        if pid is not None and started is not None:
            process = ProcessId(pid=pid, boot_id=boot, started=started)
        return LeaseRecord(
            name=name,
            value=value,
            ttl=ttl,
            until=until if boot == self._boot_id else 0.0,
            user=LockUser(run=run, process=process) if is_lock else None,
        )
