"""The page's memory of the fleet: how nodes were, and how their runs ended, in SQLite.

Owns: `web/fleet.sqlite` in the state directory. Refuses to know: the bus, who is believed.

Invariants:

- A mistake is kept as long as one of its runs would be; of all at most `MOST_FAULTS`, those that
  were seen last.
- A run is kept once, as it was told first, for `KEPT` seconds; of one node at most `MOST_RUNS`, the
  newest, so that no node fills the disk.
- What was written survives a kill -9; a file that cannot be read is an error and never looks empty.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from sqlite3 import Connection

from localpuppet.formats.strict_json import loads_again
from localpuppet.machine.database import DamagedError, Database
from localpuppet.web.ended import HOUR, KEPT, Ended
from localpuppet.web.kinds import Kind
from localpuppet.web.row import Row

FILE = Path("web", "fleet.sqlite")
MOST_RUNS = 20_000
MOST_FAULTS = 5_000
# Rows after which no further node's are taken away together: a writer waits for that.
TOGETHER = 10_000
# Seconds by which the id of a run may be of later: such a one would never become too old.
AHEAD = 86400.0
_VERSION = 1
_DAMAGED = "move it away: what is heard from then on is remembered"
_TABLES = """
CREATE TABLE IF NOT EXISTS nodes (node TEXT PRIMARY KEY, row TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS runs (
    node TEXT NOT NULL, run TEXT NOT NULL, at REAL NOT NULL, kind TEXT NOT NULL, app TEXT NOT NULL,
    why TEXT NOT NULL, PRIMARY KEY (node, run)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS hours (
    hour INTEGER NOT NULL, kind TEXT NOT NULL, runs INTEGER NOT NULL, PRIMARY KEY (hour, kind)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS faults (
    fault TEXT PRIMARY KEY, first REAL NOT NULL, last REAL NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS state (one INTEGER PRIMARY KEY, as_of REAL) STRICT;
INSERT OR IGNORE INTO state VALUES (1, NULL);
"""
# All nodes that have runs, one look at the index for each.
_NAMES = """
WITH RECURSIVE names (node) AS (
    SELECT min(node) FROM runs
    UNION ALL SELECT (SELECT min(node) FROM runs WHERE node > names.node) FROM names
    WHERE names.node IS NOT NULL
) SELECT node FROM names WHERE node IS NOT NULL
"""


class Memory:
    """The memory.

    Args:
        path: The SQLite file; made when first needed, 0600.
        now: Seconds since 1970, UTC.
    """

    def __init__(self, path: Path, *, now: Callable[[], float]) -> None:
        self._database = Database(
            path,
            tables=_TABLES,
            version=_VERSION,
            damaged=_DAMAGED,
        )
        self._now = now

    def rows(self) -> list[Row]:
        """Return the nodes as they were last.

        Raises:
            StateError: They cannot be read.
        """
        with self._database.snapshot() as connection:
            texts = connection.execute("SELECT row FROM nodes ORDER BY node").fetchall()
        try:
            return [Row.from_dict(loads_again(text.encode())) for (text,) in texts]
        except ValueError as error:
            raise DamagedError(
                f"holds a damaged row: {error}", where=str(self._database.path), hint=_DAMAGED
            ) from error

    def as_of(self) -> float | None:
        """Return when the bus last answered: seconds since 1970; `None` where it never did.

        Raises:
            StateError: It cannot be told.
        """
        with self._database.snapshot() as connection:
            row = connection.execute("SELECT as_of FROM state").fetchone()
        return None if row[0] is None else float(row[0])

    def write(
        self,
        rows: Iterable[Row],
        ended: Iterable[Ended],
        *,
        gone: Iterable[str] = (),
        as_of: float | None = None,
    ) -> None:
        """Write down what is new, in one transaction.

        Args:
            rows: Nodes that are not as they were.
            ended: Ends of runs; those known already change nothing, nor do those of long ago.
            gone: Nodes to forget; their runs stay.
            as_of: When the bus last answered; as it was for `None`.

        Raises:
            StateError: The disk refused; nothing was written.
        """
        oldest = self._now() - KEPT
        with self._database.transaction() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO nodes VALUES (?, ?)",
                [(row.node, json.dumps(row.to_dict())) for row in rows],
            )
            connection.executemany("DELETE FROM nodes WHERE node = ?", [(name,) for name in gone])
            for one in ended:
                if one.at >= oldest:
                    _note(connection, one)
            if as_of is not None:
                connection.execute("UPDATE state SET as_of = ?", (as_of,))

    def runs(self, node: str, *, limit: int, before: str = "") -> list[Ended]:
        """Return the runs of a node, the newest first.

        Args:
            node: Which.
            limit: At most so many.
            before: Only older ones than this run; empty for all.

        Raises:
            StateError: They cannot be read.
        """
        with self._database.snapshot() as connection:
            found = connection.execute(
                "SELECT node, run, at, kind, app, why FROM runs"
                " WHERE node = ?1 AND (?2 = '' OR run < ?2) ORDER BY run DESC LIMIT ?3",
                (node, before, limit),
            ).fetchall()
        return [_ended(one) for one in found]

    def run(self, node: str, run: str) -> Ended | None:
        """Return the end of a run; `None` where it is not known.

        Raises:
            StateError: It cannot be read.
        """
        with self._database.snapshot() as connection:
            found = connection.execute(
                "SELECT node, run, at, kind, app, why FROM runs WHERE node = ? AND run = ?",
                (node, run),
            ).fetchone()
        return None if found is None else _ended(found)

    def ran(self, run: str) -> Ended | None:
        """Return the end of a run of any node that is there; `None` where it is not known.

        Raises:
            StateError: It cannot be read.
        """
        with self._database.snapshot() as connection:
            found = connection.execute(
                "SELECT runs.node, run, at, kind, app, why FROM nodes"
                " CROSS JOIN runs ON runs.node = nodes.node AND runs.run = ? LIMIT 1",
                (run,),
            ).fetchone()
        return None if found is None else _ended(found)

    def hours(self, since: float) -> Mapping[tuple[int, Kind], int]:
        """Return how many runs ended in which hour since 1970, and how.

        Args:
            since: Seconds since 1970: from the hour that this is in.

        Raises:
            StateError: They cannot be counted.
        """
        with self._database.snapshot() as connection:
            found = connection.execute(
                "SELECT hour, kind, runs FROM hours WHERE hour >= ?", (int(since // HOUR),)
            )
            return {(hour, Kind(kind)): runs for hour, kind, runs in found}

    def faults(self) -> Mapping[str, tuple[float, float]]:
        """Return when each mistake was seen first and last: seconds since 1970, by `Row.fault`.

        Raises:
            StateError: They cannot be read.
        """
        with self._database.snapshot() as connection:
            found = connection.execute("SELECT fault, first, last FROM faults")
            return {fault: (first, last) for fault, first, last in found}

    def prune(self) -> bool:
        """Take away some of what is too old; return whether there may be more.

        Raises:
            StateError: The disk refused.
        """
        oldest = self._now() - KEPT
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM hours WHERE hour < ?", (int(oldest // HOUR),))
            connection.execute("DELETE FROM faults WHERE last < ?", (oldest,))
            connection.execute(
                "DELETE FROM faults WHERE fault NOT IN"
                " (SELECT fault FROM faults ORDER BY last DESC LIMIT ?)",
                (MOST_FAULTS,),
            )
            away = 0
            for (node,) in connection.execute(_NAMES).fetchall():
                # By its id, which begins with its time: an index by time would be a third of all.
                away += connection.execute(
                    "DELETE FROM runs WHERE node = ?1 AND (run < ?2 OR run > ?3)",
                    (node, _id_at(oldest), _id_at(self._now() + AHEAD)),
                ).rowcount
                if away >= TOGETHER:
                    break
        return away >= TOGETHER

    def close(self) -> None:
        """Close the file."""
        self._database.close()


def _id_at(seconds: float) -> str:
    """Return how ids of runs begin that were asked for at a time."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y%m%dT%H%M%S}"


def _note(connection: Connection, one: Ended) -> None:
    values = (one.node, one.run, one.at, str(one.kind), one.app, one.why)
    added = connection.execute("INSERT OR IGNORE INTO runs VALUES (?, ?, ?, ?, ?, ?)", values)
    if not added.rowcount:
        return
    connection.execute(
        "INSERT INTO hours VALUES (?, ?, 1) ON CONFLICT (hour, kind) DO UPDATE SET runs = runs + 1",
        (int(one.at // HOUR), str(one.kind)),
    )
    if one.fault:
        connection.execute(
            "INSERT INTO faults VALUES (?1, ?2, ?2) ON CONFLICT (fault) DO UPDATE"
            " SET first = min(first, ?2), last = max(last, ?2)",
            (one.fault, one.at),
        )
    connection.execute(
        "DELETE FROM runs WHERE node = ?1 AND run <= (SELECT run FROM runs WHERE node = ?1"
        " ORDER BY run DESC LIMIT 1 OFFSET ?2)",
        (one.node, MOST_RUNS),
    )


def _ended(found: tuple[str, str, float, str, str, str]) -> Ended:
    node, run, at, kind, app, why = found
    return Ended(node=node, run=run, at=at, kind=Kind(kind), app=app, why=why)
