"""A table of used ids in the caller's SQLite file, each kept until its own time.

It stores the ids in `seen` and the number of ids of each owner.

- An id is not deleted before its time, and the newest ids not even then, because the clock may be
  set back.
- No call reads the whole table.
"""

from localpuppet.base.machine.sqlite import sqlite3

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
        """Return whether an id is in the table."""
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
            connection: The file.
            now: Seconds since 1970.
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
