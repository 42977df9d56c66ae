"""Ids that were taken once and are not taken again, on disk.

Owns: `seen.sqlite` in the state directory. Refuses to know: what the ids are of.

Invariants: an id is on the disk before `add` says that it is new, so that neither a kill -9 nor
a power cut makes it new again; of several processes that add the same id, one is told that it is
new; nothing is forgotten before its time; and whatever goes wrong (damage, no room, too many ids)
is an error and never "new".
"""

from pathlib import Path

from localpuppet.database import Database
from localpuppet.errors import StateError
from localpuppet.ports import Clock

LIMIT = 100_000
_VERSION = 1
_TABLES = """
CREATE TABLE IF NOT EXISTS seen (
    kind TEXT NOT NULL, id TEXT NOT NULL, until INTEGER NOT NULL, PRIMARY KEY (kind, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS until ON seen (until);
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
        self._database = Database(
            path,
            tables=_TABLES,
            version=_VERSION,
            damaged="move it away when the last signed message is older than two hours",
        )
        self._clock = clock
        self._limit = limit

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
                connection.execute(
                    "DELETE FROM seen WHERE until < ? AND NOT (kind = ? AND id = ?)",
                    (now, kind, identifier),
                )
                (count,) = connection.execute("SELECT count(*) FROM seen").fetchone()
                if count > self._limit:
                    raise StateError(
                        f"{self._limit} ids are remembered already: nothing more is taken",
                        where=str(self._database.path),
                        hint="each is kept until its message has expired; who sends so many?",
                    )
        return bool(added == 1)

    def close(self) -> None:
        """Close the file; the next `add` opens it again."""
        self._database.close()
