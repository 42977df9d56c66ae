"""The leases that this node's agent has, on disk: the agent after it goes on with them.

Owns: `agent/leases.sqlite` in the state directory, and who relies on a lock (`LockUser`). Refuses
to know: the bus, and whether what is written here is still true there.

Invariant: what was noted survives a kill -9 and a power cut; a monotonic time of another boot is
not mistaken for one of this.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from localpuppet.base.machine.database import Database, Format
from localpuppet.base.machine.ports import ProcessId

_VERSION = 1
_TABLES = """
CREATE TABLE IF NOT EXISTS leases (
    name TEXT PRIMARY KEY, value BLOB NOT NULL, ttl REAL NOT NULL, until REAL NOT NULL,
    boot TEXT NOT NULL, asked INTEGER NOT NULL, run TEXT, pid INTEGER, started INTEGER
) STRICT, WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockUser:
    """Who asked for a lock, and relies on it for as long as it goes on.

    Attributes:
        run: The run that it is part of, if that has an id.
        process: The process that asked, where that is known.
    """

    run: str | None = None
    process: ProcessId | None = None

    def is_same(self, other: "LockUser") -> bool:
        """Return whether both are one run, or one process of none."""
        if self.run is not None or other.run is not None:
            return self.run == other.run
        return self.process == other.process

    def __str__(self) -> str:
        """Return `run ID`, or `process 123`."""
        if self.run is not None:
            return f"run {self.run}"
        return "nobody" if self.process is None else f"process {self.process.pid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """A lease as it is in the book.

    Attributes:
        name: Its name.
        value: What we wrote on the bus; no other session writes the same.
        ttl: Seconds for which a renewal is good.
        until: Monotonic seconds until which the last renewal was good; 0 after a reboot.
        user: Who relies on the lock; `None` for a leader's.
    """

    name: str
    value: bytes
    ttl: float
    until: float
    user: LockUser | None


class Book(Protocol):
    """Where leases are noted; see `LeaseBook`."""

    def note(self, noted: Noted) -> None:
        """Write a lease down, or anew."""
        ...

    def strike(self, name: str) -> None:
        """Take a lease out."""
        ...

    def entries(self) -> Sequence[Noted]:
        """Return what is written down."""
        ...


class LeaseBook:
    """The book, on disk.

    Args:
        path: The SQLite file; made when first needed, 0600.
        boot_id: Tells this boot of the machine from others.
    """

    def __init__(self, path: Path, *, boot_id: str) -> None:
        self._database = Database(
            path,
            Format(tables=_TABLES, version=_VERSION),
            damaged="move it away; leases that an earlier agent took expire by themselves then",
        )
        self._boot_id = boot_id

    def note(self, noted: Noted) -> None:
        """Write a lease down, or anew."""
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
        """Take a lease out.

        Raises:
            StateError: It is still there.
        """
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM leases WHERE name = ?", (name,))

    def entries(self) -> list[Noted]:
        """Return what is written down."""
        if not self._database.path.exists():
            return []  # most agents never have a lease
        with self._database.use() as connection:
            rows = connection.execute("SELECT * FROM leases ORDER BY name").fetchall()
        return [self._noted(row) for row in rows]

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        self._database.close()

    def _noted(self, row: tuple[Any, ...]) -> Noted:
        name, value, ttl, until, boot, asked, run, pid, started = row
        process = None
        if pid is not None and started is not None:
            process = ProcessId(pid=pid, boot_id=boot, started=started)
        return Noted(
            name=name,
            value=value,
            ttl=ttl,
            until=until if boot == self._boot_id else 0.0,
            user=LockUser(run=run, process=process) if asked else None,
        )
