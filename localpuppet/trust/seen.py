"""Ids that were taken once and are not taken again, on disk.

Owns: `seen.sqlite` in the state directory. Refuses to know: what the ids are of.

Invariants: an id is on the disk before `add` says that it is new, so that neither a kill -9 nor
a power cut makes it new again; of several processes that add the same id, one is told that it is
new; nothing is forgotten before its time, and the newest not even then, since a clock may be set
back; and whatever goes wrong (damage, no room, too many ids) is an error and never "new".
"""

import sqlite3
from pathlib import Path

from localpuppet.errors import StateError
from localpuppet.machine.database import Database
from localpuppet.machine.ports import Clock

LIMIT = 100_000
ALWAYS = 10_000
_VERSION = 1
_TABLES = """
CREATE TABLE IF NOT EXISTS seen (
    kind TEXT NOT NULL, id TEXT NOT NULL, until INTEGER NOT NULL, PRIMARY KEY (kind, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS until ON seen (until);
"""
_EXPIRED = "DELETE FROM seen WHERE until < ? AND NOT (kind = ? AND id = ?)"
_EXPIRED_AND_OLD = (
    "DELETE FROM seen WHERE until < ? AND NOT (kind = ? AND id = ?)"
    " AND until < (SELECT until FROM seen ORDER BY until DESC LIMIT 1 OFFSET ?)"
)


class Seen:
    """A durable set of ids, each with the time until which it is kept.

    Args:
        path: The SQLite file; made when first needed, 0600.
        clock: Tells what may be forgotten.
        limit: The most ids that are kept. Beyond it nothing new is taken until some expire: to
            forget the oldest would open the door that this closes.
        always: How many are kept though they have expired, the newest.
    """

    def __init__(
        self, path: Path, clock: Clock, *, limit: int = LIMIT, always: int = ALWAYS
    ) -> None:
        self._database = Database(
            path,
            tables=_TABLES,
            version=_VERSION,
            damaged="move it away when the last signed message is older than two hours",
        )
        self._clock = clock
        self._limit = limit
        self._always = always

    def add(self, kind: str, identifier: str, until: int) -> bool:
        """Remember an id; return whether it is new.

        Args:
            kind: What it is the id of; ids of different kinds do not meet.
            identifier: The id.
            until: Seconds since 1970; it is remembered at least so long.

        Raises:
            StateError: It cannot be told, or cannot be remembered.
        """
        now = int(self._clock.now().timestamp())
        with self._database.transaction() as connection:
            added = connection.execute(
                "INSERT OR IGNORE INTO seen VALUES (?, ?, ?)", (kind, identifier, until)
            ).rowcount
            if added:
                new = (now, kind, identifier)
                connection.execute(_EXPIRED_AND_OLD, (*new, self._always - 1))
                if self._is_full(connection):
                    connection.execute(_EXPIRED, new)  # many of one second may count as the newest
                if self._is_full(connection):
                    raise StateError(
                        f"{self._limit} ids are remembered already: nothing more is taken",
                        where=str(self._database.path),
                        hint="each is kept until its message has expired; who sends so many?",
                    )
        return bool(added == 1)

    def _is_full(self, connection: sqlite3.Connection) -> bool:
        (count,) = connection.execute("SELECT count(*) FROM seen").fetchone()
        return bool(count > self._limit)

    def close(self) -> None:
        """Close the file; the next `add` opens it again."""
        self._database.close()
