"""A table of ids that were taken once, each until a time of its own, in somebody's SQLite file.

Owns: the table `seen`, how many ids each owner has in it, and what may be forgotten. Refuses to
know: what the ids are of, and how many an owner may have.

Invariants: an id is not forgotten before its time, and the newest not even then, because a clock
may be set back; no call reads the whole table.
"""

import sqlite3

# So many ids are known whatever the clock says.
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


def from_first_format(columns: str) -> tuple[str, ...]:
    """Return what makes the tables out of the first format's table `seen`.

    Args:
        columns: Owner and id, said with the first format's columns.
    """
    made = tuple(statement for statement in TABLES.split(";\n") if statement.strip())
    return (
        "ALTER TABLE seen RENAME TO first",
        *made,
        f"INSERT INTO seen SELECT {columns}, until FROM first",  # noqa: S608 - our own words
        "INSERT INTO owners SELECT owner, count(*) FROM seen GROUP BY owner",
        "DROP TABLE first",
    )


class IdTable:
    """The table; each call is within a transaction of the caller's.

    Args:
        always: How many ids are kept though their time is over, the newest.
    """

    def __init__(self, *, always: int = ALWAYS) -> None:
        self._always = always

    def has(self, connection: sqlite3.Connection, owner: str, identifier: str) -> bool:
        """Return whether an id is known."""
        found = connection.execute(
            "SELECT 1 FROM seen WHERE owner = ? AND id = ?", (owner, identifier)
        )
        return found.fetchone() is not None

    def add(self, connection: sqlite3.Connection, owner: str, identifier: str, until: int) -> None:
        """Remember an id until a second since 1970; one that is known, until the later end."""
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
        """Return how many ids an owner has."""
        found = connection.execute("SELECT number FROM owners WHERE owner = ?", (owner,)).fetchone()
        return 0 if found is None else int(found[0])

    def total(self, connection: sqlite3.Connection) -> int:
        """Return how many ids there are."""
        return int(connection.execute("SELECT coalesce(sum(number), 0) FROM owners").fetchone()[0])

    def forget(self, connection: sqlite3.Connection, now: int, *, more: int = 0) -> None:
        """Forget what is over, but for the newest.

        Args:
            connection: The file.
            now: Seconds since 1970.
            more: How many ids are about to be added: they count among the newest.
        """
        self._forget(connection, now, self.total(connection) + more - self._always)

    def forget_all(self, connection: sqlite3.Connection, now: int) -> None:
        """Forget everything that is over: room is needed."""
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
