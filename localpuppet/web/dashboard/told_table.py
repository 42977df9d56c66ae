"""What nodes told of rollouts, in the page's memory: written, found again, taken away.

Owns: its table. Refuses to know: the file, other tables, for how long it is kept.

Invariant: of a node so many rollouts are kept, those that it told of last, and so many of all
together: a node that tells of ever new ones pushes out its own.

Every function is given a connection that is in a transaction.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from sqlite3 import Connection

from localpuppet.base.formats.names import RolloutId
from localpuppet.web.dashboard.told import Told, ToldRollout

MOST_OF_ONE = 100
MOST = 200_000
# Rollouts that are listed, the newest, and nodes that are named of one.
MOST_LISTED, MOST_NAMED = 2_000, 200
TABLES = """
CREATE TABLE IF NOT EXISTS told (
    rollout TEXT NOT NULL, caller TEXT NOT NULL, node TEXT NOT NULL, outcome TEXT NOT NULL,
    run TEXT NOT NULL, until REAL, first REAL NOT NULL, last REAL NOT NULL,
    PRIMARY KEY (rollout, caller, node)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS told_of_node ON told (node, last);
CREATE INDEX IF NOT EXISTS told_last ON told (last);
"""


def write(connection: Connection, node: str, told: Iterable[Told], *, now: float) -> None:
    """Write down what a node tells now, and that other rollouts do not hold it.

    Args:
        connection: To the file.
        node: Who tells.
        told: What, of each rollout once.
        now: Seconds since 1970, UTC.
    """
    free = "UPDATE told SET until = NULL WHERE node = ? AND until IS NOT NULL"
    connection.execute(free, (node,))
    connection.executemany(
        "INSERT INTO told VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7) ON CONFLICT DO UPDATE SET"
        " until = ?6, outcome = iif(?4 = '', outcome, ?4), run = iif(?4 = '', run, ?5),"
        " last = iif(?4 = '' OR (outcome = ?4 AND run = ?5), last, ?7)",
        [(one.rollout, one.caller, node, one.outcome, one.run, one.until, now) for one in told],
    )
    connection.execute(
        "DELETE FROM told WHERE (rollout, caller, node) IN (SELECT rollout, caller, node FROM told"
        " WHERE node = ? ORDER BY last DESC, rollout DESC LIMIT -1 OFFSET ?)",
        (node, MOST_OF_ONE),
    )


def all_(connection: Connection, *, now: float) -> list[ToldRollout]:
    """Return the newest rollouts that nodes told of, the newest first; see `ToldRollout`."""
    found: dict[tuple[str, str], ToldRollout] = {}
    for rollout, caller, outcome, nodes, held, first, last in connection.execute(
        "SELECT rollout, caller, outcome, count(*), count(*) FILTER (WHERE until > ?), min(first),"
        " max(last) FROM told GROUP BY rollout, caller, outcome",
        (now,),
    ):
        new = ToldRollout(
            rollout=RolloutId(rollout),
            caller=caller,
            ends={outcome: nodes},
            held=held,
            first=first,
            last=last,
        )
        known = found.get((rollout, caller))
        found[rollout, caller] = new if known is None else _both(known, new)
    likely: dict[str, ToldRollout] = {}
    for one in sorted(found.values(), key=lambda one: (one.nodes, -one.first)):
        likely[one.rollout] = one
    return [likely[rollout] for rollout in sorted(likely, reverse=True)[:MOST_LISTED]]


def of_rollout(connection: Connection, told: ToldRollout) -> list[tuple[str, Told]]:
    """Return what nodes told of a rollout, each with its name, at most `MOST_NAMED`.

    Those that it holds come first, then those that told something last.
    """
    return [
        (
            node,
            Told(rollout=told.rollout, caller=told.caller, outcome=outcome, run=run, until=until),
        )
        for node, outcome, run, until in connection.execute(
            "SELECT node, outcome, run, until FROM told WHERE rollout = ? AND caller = ?"
            " ORDER BY until IS NULL, last DESC, node LIMIT ?",
            (told.rollout, told.caller, MOST_NAMED),
        )
    ]


def holding(connection: Connection, *, now: float) -> Mapping[str, tuple[Told, ...]]:
    """Return what nodes told of rollouts that hold them, by node."""
    found: dict[str, tuple[Told, ...]] = {}
    for node, rollout, caller, outcome, run, until in connection.execute(
        "SELECT node, rollout, caller, outcome, run, until FROM told WHERE until > ?", (now,)
    ):
        one = Told(rollout=RolloutId(rollout), caller=caller, outcome=outcome, run=run, until=until)
        found[node] = (*found.get(node, ()), one)
    return found


def take_away(connection: Connection, *, oldest: float, most: int = MOST) -> None:
    """Take away what was told before a moment, and what is more than so many, the oldest first."""
    connection.execute("DELETE FROM told WHERE last < ?", (oldest,))
    connection.execute(
        "DELETE FROM told WHERE (rollout, caller, node) IN (SELECT rollout, caller, node FROM told"
        " ORDER BY last DESC, rollout DESC LIMIT -1 OFFSET ?)",
        (most,),
    )


def _both(one: ToldRollout, other: ToldRollout) -> ToldRollout:
    return replace(
        one,
        ends={**one.ends, **other.ends},
        held=one.held + other.held,
        first=min(one.first, other.first),
        last=max(one.last, other.last),
    )
