"""The table of nodes' reports about rollouts in the dashboard's memory.

The last reported rollouts of each node are kept, and of all nodes together: a node that reports
ever new rollouts displaces only its own. Every function takes a connection in a transaction.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from localpuppet.base.formats.names import RolloutId
from localpuppet.base.machine.sqlite import Connection
from localpuppet.web.dashboard.remote_rollouts import NodeRolloutReport, ReportedRollout

MOST_OF_ONE = 100
MOST = 200_000
# Rollouts that are listed, the newest, and nodes that are named of one.
MOST_LISTED, MOST_NAMED = 2_000, 200
TABLES = """
CREATE TABLE IF NOT EXISTS rollout_reports (
    rollout TEXT NOT NULL, caller TEXT NOT NULL, node TEXT NOT NULL, outcome TEXT NOT NULL,
    run TEXT NOT NULL, until REAL, first REAL NOT NULL, last REAL NOT NULL,
    PRIMARY KEY (rollout, caller, node)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS rollout_reports_of_node ON rollout_reports (node, last);
CREATE INDEX IF NOT EXISTS rollout_reports_last ON rollout_reports (last);
"""


def write(
    connection: Connection, node: str, reports: Iterable[NodeRolloutReport], *, now: float
) -> None:
    """Write the current reports of a node, and end its other rollouts' holds.

    Args:
        connection: The connection.
        node: The node.
        reports: The reports, one for each rollout.
        now: Seconds since 1970, UTC.
    """
    free = "UPDATE rollout_reports SET until = NULL WHERE node = ? AND until IS NOT NULL"
    connection.execute(free, (node,))
    connection.executemany(
        "INSERT INTO rollout_reports VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7) ON CONFLICT DO UPDATE"
        " SET until = ?6, outcome = iif(?4 = '', outcome, ?4), run = iif(?4 = '', run, ?5),"
        " last = iif(?4 = '' OR (outcome = ?4 AND run = ?5), last, ?7)",
        [
            (report.rollout, report.caller, node, report.outcome, report.run, report.until, now)
            for report in reports
        ],
    )
    connection.execute(
        "DELETE FROM rollout_reports WHERE (rollout, caller, node) IN"
        " (SELECT rollout, caller, node FROM rollout_reports WHERE node = ?"
        " ORDER BY last DESC, rollout DESC LIMIT -1 OFFSET ?)",
        (node, MOST_OF_ONE),
    )


def all_(connection: Connection, *, now: float) -> list[ReportedRollout]:
    """Return the newest reported rollouts, newest first; see `ReportedRollout`."""
    by_rollout: dict[tuple[str, str], ReportedRollout] = {}
    for rollout, caller, outcome, nodes, held, first, last in connection.execute(
        "SELECT rollout, caller, outcome, count(*), count(*) FILTER (WHERE until > ?), min(first),"
        " max(last) FROM rollout_reports GROUP BY rollout, caller, outcome",
        (now,),
    ):
        new = ReportedRollout(
            rollout=RolloutId(rollout),
            caller=caller,
            ends={outcome: nodes},
            held=held,
            first=first,
            last=last,
        )
        known = by_rollout.get((rollout, caller))
        by_rollout[rollout, caller] = new if known is None else _both(known, new)
    likely: dict[str, ReportedRollout] = {}
    for item in sorted(by_rollout.values(), key=lambda reported: (reported.nodes, -reported.first)):
        likely[item.rollout] = item
    return [likely[rollout] for rollout in sorted(likely, reverse=True)[:MOST_LISTED]]


def of_rollout(
    connection: Connection, reported: ReportedRollout
) -> list[tuple[str, NodeRolloutReport]]:
    """Return the reports about a rollout with the nodes' names, at most `MOST_NAMED`.

    Held nodes come first, then the newest reports.
    """
    return [
        (
            node,
            NodeRolloutReport(
                rollout=reported.rollout,
                caller=reported.caller,
                outcome=outcome,
                run=run,
                until=until,
            ),
        )
        for node, outcome, run, until in connection.execute(
            "SELECT node, outcome, run, until FROM rollout_reports WHERE rollout = ? AND caller = ?"
            " ORDER BY until IS NULL, last DESC, node LIMIT ?",
            (reported.rollout, reported.caller, MOST_NAMED),
        )
    ]


def holding(connection: Connection, *, now: float) -> Mapping[str, tuple[NodeRolloutReport, ...]]:
    """Return the reports of nodes about rollouts that hold them, by node."""
    by_node: dict[str, tuple[NodeRolloutReport, ...]] = {}
    for node, rollout, caller, outcome, run, until in connection.execute(
        "SELECT node, rollout, caller, outcome, run, until FROM rollout_reports WHERE until > ?",
        (now,),
    ):
        report = NodeRolloutReport(
            rollout=RolloutId(rollout), caller=caller, outcome=outcome, run=run, until=until
        )
        by_node[node] = (*by_node.get(node, ()), report)
    return by_node


def take_away(connection: Connection, *, oldest: float, most: int = MOST) -> None:
    """Delete reports before a time, and those beyond a number, oldest first."""
    connection.execute("DELETE FROM rollout_reports WHERE last < ?", (oldest,))
    connection.execute(
        "DELETE FROM rollout_reports WHERE (rollout, caller, node) IN"
        " (SELECT rollout, caller, node FROM rollout_reports"
        " ORDER BY last DESC, rollout DESC LIMIT -1 OFFSET ?)",
        (most,),
    )


def _both(rollout: ReportedRollout, other: ReportedRollout) -> ReportedRollout:
    return replace(
        rollout,
        ends={**rollout.ends, **other.ends},
        held=rollout.held + other.held,
        first=min(rollout.first, other.first),
        last=max(rollout.last, other.last),
    )
