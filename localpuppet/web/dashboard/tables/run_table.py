"""The tables of runs in the dashboard's memory.

- Each text (a node's name, an outcome, a release, a reason) is stored once. Runs are clustered by
  day, so that a day is written and deleted together; a text is deleted with the last day that uses
  it.
- A node whose day is full adds no texts, nor does a run that is known: a node that sends a thousand
  new entries a second does not fill the file.
- Every function takes a connection in a transaction.
"""

from sqlite3 import Connection

from localpuppet.base.formats.names import RunId
from localpuppet.fleet.inventory.run_kind import Kind
from localpuppet.web.dashboard.run_results import RunResult
from localpuppet.web.dashboard.tables.dated import parts_of, run_of

# Runs of a node and a day, the newest.
MOST_A_DAY = 500
# Bytes of a text; a longer one would have pages of the file for itself.
MAX_TEXT_BYTES = 400
TABLES = """
CREATE TABLE IF NOT EXISTS texts (
    id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE, day INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS texts_by_day ON texts (day);
CREATE TABLE IF NOT EXISTS runs (
    day INTEGER NOT NULL, node INTEGER NOT NULL, moment INTEGER NOT NULL, at REAL NOT NULL,
    outcome INTEGER NOT NULL, release INTEGER NOT NULL, reason INTEGER NOT NULL,
    PRIMARY KEY (day, node, moment)
) STRICT, WITHOUT ROWID;
"""
_FOUND = """
SELECT node.text, runs.day, moment, at, outcome.text, release.text, reason.text FROM runs
JOIN texts AS node ON node.id = runs.node JOIN texts AS outcome ON outcome.id = runs.outcome
JOIN texts AS release ON release.id = runs.release JOIN texts AS reason ON reason.id = runs.reason
"""

_Found = tuple[str, int, int, float, str, str, str]


class RunTableWriter:
    """Writes ends of runs.

    Args:
        connection: A connection in a transaction.
        most: Maximum number of runs a node and day.
    """

    def __init__(self, connection: Connection, *, most: int = MOST_A_DAY) -> None:
        self._connection = connection
        self._most = most
        self._known: dict[str, tuple[int, int]] = {}

    def add(self, one: RunResult) -> bool:
        """Add an end of a run; return whether it is new and fits its day."""
        day, moment = parts_of(RunId(one.run))
        node = self._number(one.node, day)
        if self._is_there(day, node, moment):
            return False
        oldest = self._oldest_of_full(day, node)
        if oldest is not None and moment < oldest:
            return False
        outcome = self._number(str(one.outcome), day)
        number = self._number if oldest is None else self._known_number
        self._connection.execute(
            "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?)",
            (day, node, moment, one.at, outcome, number(one.release, day), number(one.reason, day)),
        )
        if oldest is None:
            return True
        self._connection.execute(
            "DELETE FROM runs WHERE day = ? AND node = ? AND moment = ?", (day, node, oldest)
        )
        return False

    def _is_there(self, day: int, node: int, moment: int) -> bool:
        found = self._connection.execute(
            "SELECT 1 FROM runs WHERE day = ? AND node = ? AND moment = ?", (day, node, moment)
        )
        return found.fetchone() is not None

    def _oldest_of_full(self, day: int, node: int) -> int | None:
        """Return the oldest run of a full day; `None` if the day has room."""
        found: tuple[int] | None = self._connection.execute(
            "SELECT moment FROM runs WHERE day = ? AND node = ?"
            " ORDER BY moment DESC LIMIT 1 OFFSET ?",
            (day, node, self._most - 1),
        ).fetchone()
        return None if found is None else found[0]

    def _known_number(self, text: str, day: int) -> int:
        """Return the number of a text that this or a later day uses, else of the empty text."""
        found: tuple[int] | None = self._connection.execute(
            "SELECT id FROM texts WHERE text = ? AND day >= ?", (_cut(text), day)
        ).fetchone()
        return self._number("", day) if found is None else found[0]

    def _number(self, text: str, day: int) -> int:
        """Return the number of a text; add it if unknown, and extend its use to the day."""
        text = _cut(text)
        number, until = self._known.get(text, (0, -1))
        if until >= day:
            return number
        found: tuple[int] = self._connection.execute(
            "INSERT INTO texts (text, day) VALUES (?, ?) ON CONFLICT (text) DO UPDATE"
            " SET day = max(day, excluded.day) RETURNING id",
            (text, day),
        ).fetchone()
        self._known[text] = found[0], day
        return found[0]


def _cut(text: str) -> str:
    return text.encode()[:MAX_TEXT_BYTES].decode(errors="ignore")


def of_node(
    connection: Connection, node: str, *, limit: int, before: RunId | None = None
) -> list[RunResult]:
    """Return runs of a node, newest first.

    Args:
        connection: The connection.
        node: The node.
        limit: Maximum number.
        before: Only older ones than this run; `None` for all.
    """
    number = connection.execute("SELECT id FROM texts WHERE text = ?", (node,)).fetchone()
    # Each by itself: SQLite looks at the index for one, and at every run for both.
    days = "SELECT (SELECT min(day) FROM runs), (SELECT max(day) FROM runs)"
    first, last = connection.execute(days).fetchone()
    if number is None or first is None:
        return []
    # Of later ones than all there are, where none is named.
    begin, moment = parts_of(before) if before is not None else (last + 1, 0)
    found: list[_Found] = []
    for day in range(min(begin, last + 1), first - 1, -1):
        found += connection.execute(
            f"{_FOUND} WHERE runs.day = ?1 AND node = ?2 AND (?1 < ?3 OR moment < ?4)"
            " ORDER BY moment DESC LIMIT ?5",
            (day, *number, begin, moment, limit - len(found)),
        )
        if len(found) == limit:
            break
    return [_ended(one) for one in found]


def of_id(connection: Connection, run: RunId, node: str) -> RunResult | None:
    """Return the end of a run of a node, or `None`."""
    found = connection.execute(
        f"{_FOUND} WHERE runs.day = ? AND moment = ?"  # noqa: S608
        " AND node = (SELECT id FROM texts WHERE text = ?)",
        (*parts_of(run), node),
    ).fetchone()
    return None if found is None else _ended(found)


def between(connection: Connection, first: RunId, last: RunId, *, limit: int) -> list[RunResult]:
    """Return the ends of runs with ids of one day, newest first.

    Args:
        connection: The connection.
        first: The first id.
        last: The last id.
        limit: Maximum number.
    """
    (day, begin), (_, end) = parts_of(first), parts_of(last)
    found = connection.execute(
        f"{_FOUND} WHERE (runs.day, runs.node, moment) IN"  # noqa: S608
        " (SELECT day, node, moment FROM runs"
        " WHERE day = ? AND moment BETWEEN ? AND ? ORDER BY moment DESC LIMIT ?)"
        " ORDER BY moment DESC",
        (day, begin, end, limit),
    )
    return [_ended(one) for one in found]


def first_day(connection: Connection) -> int | None:
    """Return the first day with runs, or `None`."""
    (day,) = connection.execute("SELECT min(day) FROM runs").fetchone()
    return None if day is None else int(day)


def take_away(connection: Connection, *, until: int | None = None, most: int) -> int:
    """Delete some of the oldest runs; return their number.

    Args:
        connection: The connection.
        until: Delete only runs of earlier days; `None` for any.
        most: Maximum number.
    """
    day = first_day(connection)
    if day is None or (until is not None and day >= until):
        return 0
    beyond = connection.execute(
        "SELECT node, moment FROM runs WHERE day = ? ORDER BY node, moment LIMIT 1 OFFSET ?",
        (day, most),
    ).fetchone()
    if beyond is not None:
        some = "DELETE FROM runs WHERE day = ? AND (node, moment) < (?, ?)"
        away = connection.execute(some, (day, *beyond))
    else:
        away = connection.execute("DELETE FROM runs WHERE day = ?", (day,))
        connection.execute("DELETE FROM texts WHERE day <= ?", (day,))
    return int(away.rowcount)


def _ended(found: _Found) -> RunResult:
    node, day, moment, at, outcome, release, reason = found
    return RunResult(
        node=node,
        run=run_of(day, moment),
        at=at,
        outcome=Kind(outcome),
        release=release,
        reason=reason,
    )
