"""The inbox: causes that were accepted and are owed a run, and the ids that were seen, on disk.

Owns: `agent/inbox.sqlite` in the state directory. Refuses to know: what a cause is for, when a run
is due. Invariants: a cause and its id become durable in one transaction, before anybody acts on
them; a kill -9 or a power cut takes back nothing that was said; the newest ids are known whatever
somebody does to the clock.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from localpuppet.errors import StateError
from localpuppet.machine.database import Database
from localpuppet.machine.ports import Clock
from localpuppet.triggers.cause import Cause

# So many ids are known also when the clock says that nothing of theirs could come again: it may be
# set back.
ALWAYS = 10_000
_VERSION = 1
_TABLES = """
CREATE TABLE IF NOT EXISTS causes (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, cause TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS seen (
    id TEXT PRIMARY KEY, until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS seen_until ON seen (until);
"""


class Inbox:
    """The causes that a node owes a run.

    Args:
        path: The SQLite file; made when first needed, 0600.
        clock: Tells what may be forgotten.
        always: How many ids are known at least, the newest.
    """

    def __init__(self, path: Path, clock: Clock, *, always: int = ALWAYS) -> None:
        self._database = Database(
            path,
            tables=_TABLES,
            version=_VERSION,
            damaged="move it away; what it owed is lost then, so run 'localpuppet apply'",
        )
        self._clock = clock
        self._always = always

    def seen(self, identifier: str) -> bool:
        """Return whether a cause of that id was accepted, and might come again.

        Raises:
            StateError: It cannot be told.
        """
        with self._database.use() as connection:
            rows = connection.execute("SELECT 1 FROM seen WHERE id = ?", (identifier,))
            return rows.fetchone() is not None

    def accept(self, causes: Sequence[tuple[Cause, int]]) -> None:
        """Write causes down, all or none.

        Args:
            causes: Each with the second (since 1970) until which its id is remembered.

        Raises:
            StateError: They are not on the disk.
        """
        now = int(self._clock.now().timestamp())
        with self._database.transaction() as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO causes (id, cause) VALUES (?, ?)",
                [(cause.id, json.dumps(cause.to_dict())) for cause, _ in causes],
            )
            connection.executemany(
                "INSERT OR REPLACE INTO seen VALUES (?, ?)",
                [(cause.id, until) for cause, until in causes],
            )
            connection.execute(
                "DELETE FROM seen WHERE until < ? AND until <"
                " (SELECT until FROM seen ORDER BY until DESC LIMIT 1 OFFSET ?)",
                (now, self._always - 1),
            )

    def forget(self, identifiers: Iterable[str]) -> None:
        """Take causes out that were settled.

        Raises:
            StateError: They are still on the disk, and will be settled again.
        """
        with self._database.transaction() as connection:
            connection.executemany(
                "DELETE FROM causes WHERE id = ?", [(identifier,) for identifier in identifiers]
            )

    def causes(self) -> list[Cause]:
        """Return what is owed, in the order in which it was accepted.

        Raises:
            StateError: It cannot be read.
        """
        with self._database.use() as connection:
            rows = connection.execute("SELECT cause FROM causes ORDER BY number").fetchall()
        try:
            return [Cause.from_dict(json.loads(text)) for (text,) in rows]
        except (ValueError, StateError) as error:
            raise StateError(
                f"holds a damaged cause: {error}", where=str(self._database.path)
            ) from error

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        self._database.close()
