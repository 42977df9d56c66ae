"""The nodes in the dashboard's memory: one row each, and their lists and counts as SELECTs.

- The columns beside the row are what lists filter, sort and count by. They have the values of
  `NodeRow`, which alone decides what is late, failing or failed.
- A tag is the same everywhere. If nodes have different bytes of one release, those with the less
  common bytes are wrong; all of them if no bytes are the most common. A rollback is a decision: the
  node has the release that it should have, which is not its input's.
- Every function takes a connection in a transaction.
"""

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from localpuppet.base.formats.converter import from_record, to_record
from localpuppet.base.formats.strict_json import loads_again
from localpuppet.base.machine.sqlite import Connection
from localpuppet.base.value import Value
from localpuppet.fleet.inventory import presence
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.web.dashboard import reported_rollouts, run_queries
from localpuppet.web.dashboard.list_query import ListPage, ListQuery
from localpuppet.web.dashboard.reported_rollouts import NodeRolloutReport
from localpuppet.web.dashboard.run_table import RunRow

# From when a node may have to send a report; the PuppetDB API finds these nodes by it.
MAY_MISS = (
    f"iif(severity = 0 OR state = '{presence.NOT_TRUSTED}' OR state = '{presence.UNRESPONSIVE}'"
    " AND row ->> 'received_at' IS NOT NULL, 0, late_from)"
)
TABLES = f"""
CREATE TABLE IF NOT EXISTS nodes (
    node TEXT PRIMARY KEY, state TEXT NOT NULL, outcome TEXT NOT NULL, rank INTEGER NOT NULL,
    severity INTEGER NOT NULL, held INTEGER NOT NULL, back INTEGER NOT NULL,
    agrees INTEGER NOT NULL, by_person INTEGER NOT NULL, free_at REAL NOT NULL,
    rollouts TEXT NOT NULL, late_from REAL, finished_at REAL, failing_since REAL,
    release TEXT NOT NULL, digest TEXT NOT NULL, failure_cause TEXT NOT NULL, failure TEXT NOT NULL,
    place TEXT NOT NULL, resource TEXT NOT NULL, roles TEXT NOT NULL, row TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS nodes_by_release ON nodes (release, agrees, digest, outcome, state,
    node, finished_at, late_from, held, back);
CREATE INDEX IF NOT EXISTS nodes_failed ON nodes (failure_cause) WHERE failure_cause != '';
CREATE INDEX IF NOT EXISTS nodes_by_state ON nodes (state, node);
CREATE INDEX IF NOT EXISTS nodes_held ON nodes (node) WHERE held;
CREATE INDEX IF NOT EXISTS nodes_back ON nodes (node) WHERE back;
CREATE INDEX IF NOT EXISTS nodes_may_miss ON nodes ({MAY_MISS});
CREATE VIEW IF NOT EXISTS wrong AS
WITH counted AS (
    SELECT release, digest, count(*) AS number FROM nodes WHERE agrees GROUP BY release, digest
), most AS (
    SELECT release, max(number) AS number FROM counted GROUP BY release HAVING count(*) > 1
), usual AS (
    SELECT release, iif(count(*) = 1, max(digest), '') AS usual
    FROM counted JOIN most USING (release, number) GROUP BY release
) SELECT node, release, digest, usual FROM usual CROSS JOIN nodes USING (release)
    WHERE agrees AND digest != usual;
"""  # noqa: S608
# Rows of a part of the overview; the rest is a link away.
MOST = 10
_SHORT = 12  # of a digest
_PUT = f"INSERT OR REPLACE INTO nodes VALUES ({', '.join('?' * 22)})"  # noqa: S608
_LATE = presence.LATE_SEVERITY
_SEVERITY = f"iif(severity > {_LATE} AND late_from < :now, {_LATE}, severity)"
# The orders that are not fields of the row, or have an index.
_ORDERS = {
    **{name: name for name in ("node", "state", "release")},
    "severity": _SEVERITY,
    "outcome": "rank",
    "failing_since": "ifnull(failing_since, 9e999)",
    "finished_at": "ifnull(finished_at, 0)",
}
CONCERNS = {
    presence.LATE: "late_from < :now",
    presence.WRONG_RELEASE: "node IN (SELECT node FROM wrong)",
    presence.ROLLED_BACK: "back",
    presence.ON_HOLD: "held",
}
# What the overview names nodes for: the condition and the order.
_ATTENTION = {
    presence.UNRESPONSIVE: (f"state = '{presence.UNRESPONSIVE}'", "node"),
    presence.NOT_TRUSTED: (f"state = '{presence.NOT_TRUSTED}'", "node"),
    presence.LATE: (CONCERNS[presence.LATE], "finished_at, node"),
    presence.ON_HOLD: ("held AND by_person", "free_at, node"),
    presence.ROLLED_BACK: ("back", "node"),
    presence.WRONG_RELEASE: (CONCERNS[presence.WRONG_RELEASE], "node"),
}
# Each release once: without the limit, SQLite calls the function for each node.
_OLDER = (
    "SELECT release FROM (SELECT DISTINCT release FROM nodes LIMIT -1)"
    " WHERE is_older(release, :older)"
)
Names = Collection[str] | None
Values = dict[str, str | int | float | None]


@dataclass(slots=True, eq=False)
class NodeTable:
    """Changes the nodes in one transaction."""

    connection: Connection
    now: float
    changed: set[str] = field(default_factory=set, init=False)
    gone: set[str] = field(default_factory=set, init=False)
    reported: bool = field(default=False, init=False)
    count: int = field(init=False)

    def __post_init__(self) -> None:
        (self.count,) = self.connection.execute("SELECT count(*) FROM nodes").fetchone()

    def put(self, row: presence.NodeRow, before: presence.NodeRow | None) -> None:
        """Write a node, unless only the time of its message is new."""
        if before is not None and replace(before, received_at=row.received_at) == row:
            return
        back = bool(row.input_release) and row.input_release != row.release
        agrees = not back and presence.TAGS in row.release and bool(row.release_digest)
        values = (
            *(row.node, row.state, row.outcome.value, row.outcome.place, row.severity_in_time),
            *(row.is_held, back, agrees, *_holders(row)),
            *(row.late_from, row.finished_at, row.failing_since),
            *(row.release, row.release_digest, row.failure_cause, row.failure, row.place),
            *(row.resource, ", ".join(row.roles), json.dumps(to_record(row))),
        )
        self.connection.execute(_PUT, values)
        self.count += before is None
        self.gone.discard(row.node)
        self.changed.add(row.node)

    def forget(self, name: str) -> None:
        """Delete a node; rollouts no longer hold it, and its runs stay."""
        self.connection.execute("DELETE FROM nodes WHERE node = ?", (name,))
        self.report(name, ())
        self.count -= 1
        self.gone.add(name)
        self.changed.add(name)

    def report(self, name: str, reports: Iterable[NodeRolloutReport]) -> None:
        """Write the current reports of a node about rollouts."""
        reported_rollouts.write(self.connection, name, reports, now=self.now)
        self.reported = True

    def names(self, condition: str = "1") -> set[str]:
        rows = self.connection.execute(f"SELECT node FROM nodes WHERE {condition}")  # noqa: S608
        return {name for (name,) in rows}


def of_text(text: str) -> presence.NodeRow:
    """Return the node in a column `row`."""
    return from_record(presence.NodeRow, loads_again(text.encode()))


def of_name(connection: Connection, name: str) -> presence.NodeRow | None:
    """Return a node; `None` if it is unknown."""
    row = connection.execute("SELECT row FROM nodes WHERE node = ?", (name,)).fetchone()
    return None if row is None else of_text(row[0])


def of_names(connection: Connection, names: Iterable[str]) -> dict[str, presence.NodeRow | None]:
    """Return nodes by name; `None` for those that are unknown."""
    return {name: of_name(connection, name) for name in names}


class MapNode(NamedTuple):
    """What the map needs of a node; see `NodeRow`."""

    node: str
    severity: int
    outcome: Kind
    roles: str


def brief(connection: Connection, *, now: float) -> list[MapNode]:
    """Return all nodes, in no order."""
    select = f"SELECT node, {_SEVERITY}, outcome, roles FROM nodes"  # noqa: S608
    return [
        MapNode(node, severity, Kind(outcome), roles)
        for node, severity, outcome, roles in connection.execute(select, {"now": now})
    ]


def searched(
    connection: Connection,
) -> tuple[dict[str, str], list[str], Counter[str], dict[str, int]]:
    """Return nodes with their results, releases, and the numbers of nodes by role and by state."""
    results = dict(connection.execute("SELECT node, outcome FROM nodes").fetchall())
    releases = connection.execute("SELECT DISTINCT release FROM nodes")
    roles = Counter[str]()
    for text, number in connection.execute(
        "SELECT roles, count(*) FROM nodes WHERE roles != '' GROUP BY roles"
    ):
        roles.update(dict.fromkeys(text.split(", "), number))
    states = dict(connection.execute("SELECT state, count(*) FROM nodes GROUP BY state").fetchall())
    return results, [release for (release,) in releases], roles, states


def is_any(connection: Connection) -> bool:
    """Return whether a node is known."""
    return connection.execute("SELECT 1 FROM nodes").fetchone() is not None


def selected(asked: ListQuery, names: Names, *, now: float) -> tuple[str, Values]:
    """Return the condition of the requested nodes, which its expression finds, with its values."""
    conditions = {
        # Not by the index of names: a look at all nodes is as fast as one at most of them.
        "+node IN (SELECT value FROM json_each(:names))": names is not None,
        "instr(node, :name)": asked.name,
        "outcome = :outcome": asked.outcome,
        "release = :release": asked.release,
        f"finished_at IS NOT NULL AND release IN ({_OLDER})": asked.older,
        "failure_cause = :failure_cause": asked.failure_cause,
        CONCERNS.get(asked.is_, "state = :is_"): asked.is_,
    }
    values: Values = {key: getattr(asked, key) for key in ("name", "release", "older", "is_")}
    values |= {"failure_cause": asked.failure_cause, "outcome": asked.outcome, "now": now}
    values["names"] = None if names is None else json.dumps([*names])
    return " AND ".join(text for text, given in conditions.items() if given) or "1", values


def listed(
    connection: Connection, asked: ListQuery, names: Names, *, now: float
) -> ListPage[presence.NodeRow]:
    """Return the requested page of nodes, equal ones by name."""
    some, values = selected(asked, names, now=now)
    if asked.older:
        connection.create_function("is_older", 2, presence.is_older, deterministic=True)
    by = _ORDERS.get(asked.order, f"row ->> '{asked.order}'")
    order = f"{by}{' DESC' if asked.down else ''}, node"
    (total,) = connection.execute(f"SELECT count(*) FROM nodes WHERE {some}", values).fetchone()  # noqa: S608
    rows = _rows(connection, some, order, values, asked.limit)
    return ListPage(rows=rows, total=total, page=asked.page or 1)


def _rows(
    connection: Connection, some: str, order: str, values: Values, limit: str
) -> list[presence.NodeRow]:
    # Rows are long: only those that are needed are read.
    found = connection.execute(
        "SELECT row FROM nodes WHERE node IN"  # noqa: S608
        f" (SELECT node FROM nodes WHERE {some} ORDER BY {order}{limit}) ORDER BY {order}",
        values,
    )
    return [of_text(text) for (text,) in found]


class Overview(Value):
    """A summary of a fleet."""

    total: int
    # Nodes by the result of their last run, in the order of `Kind`; zeros are left out.
    kinds: Sequence[tuple[Kind, int]]
    concerns: Mapping[str, int]
    rollout_holds: Mapping[str, Sequence[str]]  # rollout → nodes that it holds, sorted
    # Concern → the first nodes that it concerns; without those on hold for a rollout.
    attention: Mapping[str, Sequence[presence.NodeRow]]
    # Node → how its bytes of a release differ from the usual ones.
    wrong_releases: Mapping[str, str]


def overview(connection: Connection, names: Names, *, now: float) -> Overview:
    """Return the summary of nodes; see `selected` for `names`."""
    some, values = selected(ListQuery(), names, now=now)

    def rows(condition: str, order: str) -> list[presence.NodeRow]:
        return _rows(connection, f"{condition} AND {some}", order, values, f" LIMIT {MOST}")

    kinds, concerns = Counter[Kind](), Counter[str]()
    for outcome, state, *counts in connection.execute(
        "SELECT outcome, state, count(*), total(held), total(late_from < :now), total(back)"  # noqa: S608
        f" FROM nodes INDEXED BY nodes_by_release WHERE {some} GROUP BY outcome, state",
        values,
    ):
        nodes, held, late, back = map(int, counts)
        kinds[Kind(outcome)] += nodes
        concerns[state] += nodes if state != presence.ON_HOLD else 0
        concerns.update({presence.ON_HOLD: held, presence.LATE: late, presence.ROLLED_BACK: back})
    odd = connection.execute(
        f"SELECT node, release, digest, usual FROM wrong WHERE {some} ORDER BY node",  # noqa: S608
        values,
    ).fetchall()
    concerns[presence.WRONG_RELEASE] = len(odd)
    holds: dict[str, list[str]] = {}
    for rollout, node in connection.execute(
        "SELECT value, node FROM nodes CROSS JOIN json_each(rollouts)"  # noqa: S608
        f" WHERE held AND {some} ORDER BY node",
        values,
    ):
        holds.setdefault(rollout, []).append(node)
    return Overview(
        total=kinds.total(),
        kinds=[(kind, kinds[kind]) for kind in Kind if kinds[kind]],
        concerns=concerns,
        rollout_holds=holds,
        attention={
            concern: rows(*_ATTENTION[concern]) for concern in _ATTENTION if concerns[concern]
        },
        wrong_releases={node: _difference(*more) for node, *more in odd},
    )


def _difference(release: str, digest: str, usual: str) -> str:
    most = f"; most nodes have {usual[:_SHORT]}" if usual else ", and nodes differ"
    return f"its {release} is {digest[:_SHORT]}{most}"


def _holders(row: presence.NodeRow) -> tuple[bool, float, str]:
    """Return whether a person holds a node, until when it is held, and by which rollouts."""
    ends = [hold.until if hold.until is not None else math.inf for hold in row.holds]
    rollouts = sorted({hold.rollout for hold in row.holds})
    named = json.dumps([rollout for rollout in rollouts if rollout])
    return not (ends and all(rollouts)), max(ends, default=math.inf), named


class Tally(Value):
    """The nodes whose last run applied a release: results in order of `Kind`, and the last end."""

    nodes: Sequence[str] = ()
    kinds: Sequence[tuple[Kind, int]] = ()
    digests: Sequence[tuple[str, int]] = ()
    wrong_release: int = 0
    last: float | None = None

    @property
    def bad(self) -> int:
        """Return the number of failed runs."""
        return sum(count for kind, count in self.kinds if kind.bad)


def tallies(connection: Connection, names: Names) -> Mapping[str, Tally]:
    """Return the nodes by the release of their last run, which is empty for runs without one."""
    some, values = selected(ListQuery(), names, now=0.0)

    kinds: dict[str, Counter[str]] = {}
    digests: dict[str, Counter[str]] = {}
    for release, digest, outcome, number in connection.execute(
        "SELECT release, digest, outcome, count(*) FROM nodes"  # noqa: S608
        f" WHERE finished_at IS NOT NULL AND {some} GROUP BY release, agrees, digest, outcome",
        values,
    ):
        kinds.setdefault(release, Counter())[outcome] += number
        digests.setdefault(release, Counter())[digest] += number
    wrong = dict(
        connection.execute(
            f"SELECT release, count(*) FROM wrong WHERE {some} GROUP BY release",  # noqa: S608
            values,
        ).fetchall()
    )
    return {
        release: Tally(
            nodes=sorted(loads_again(nodes.encode())),
            kinds=[(kind, kinds[release][kind]) for kind in Kind if kinds[release][kind]],
            digests=sorted(
                ((digest, number) for digest, number in digests[release].items() if digest),
                key=lambda count: (-count[1], count[0]),
            ),
            wrong_release=wrong.get(release, 0),
            last=last,
        )
        for release, nodes, last in connection.execute(
            "SELECT release, json_group_array(node), max(finished_at) FROM nodes"  # noqa: S608
            f" WHERE finished_at IS NOT NULL AND {some} GROUP BY release",
            values,
        )
    }


# Failed last runs, one row for each failure cause: `puppet.fault` makes messages comparable.
_GROUPS = """
SELECT failure_cause, failure, place, count(*) AS number, json_group_array(node),
    group_concat(DISTINCT outcome), count(DISTINCT resource),
    count(DISTINCT substr(resource, 1, instr(resource || '[', '['))),
    substr(max(printf('%020.6f', finished_at) || node), 21),
    ifnull(min(failing_since), min(finished_at)) AS since,
    min(min(finished_at), ifnull(first, 9e999)) AS first,
    max(max(finished_at), ifnull(last, 0)) AS last, count(*) OVER ()
FROM nodes LEFT JOIN (SELECT failure_cause, first, last FROM failures) USING (failure_cause)
WHERE failure_cause != '' AND {} GROUP BY failure_cause
"""
_GROUP_ORDERS = {"nodes": "number", "error": "failure"}


class FailureGroup(Value):
    """A failure cause, with the nodes whose last runs it broke."""

    failure_cause: str  # its key, see `NodeRow.failure_cause`
    error: str
    resource: str  # the first failed resource; only its type if the resource differs between nodes
    place: str
    kinds: Sequence[Kind]
    nodes: Sequence[str]
    newest: tuple[str, str]
    release: str
    since: float
    first: float
    last: float
    cause: str = ""
    worked: RunRow | None = None  # the last good run of the newest node; `None` if unknown
    broke: str = ""  # the release of the first failed run after it; empty if unknown


def failure_groups(
    connection: Connection, asked: ListQuery, names: Names
) -> ListPage[FailureGroup]:
    """Return the failure causes of the requested nodes, in order; a page's have their runs."""
    some, values = selected(asked, names, now=0.0)
    order = f"{_GROUP_ORDERS.get(asked.order, asked.order)}{' DESC' if asked.down else ''}"
    select = f"{_GROUPS.format(some)} ORDER BY {order}, since DESC, failure, place"
    page = ListPage.read(connection, select, values, asked, partial(_group, connection))
    return page if asked.page is None else replace(page, rows=_with_runs(connection, page.rows))


def _group(
    connection: Connection,
    key: str,
    error: str,
    place: str,
    _: int,
    members: str,
    outcomes: str,
    resources: int,
    types: int,
    newest: str,
    *times: float,
) -> FailureGroup:
    row = of_name(connection, newest) or presence.NodeRow(node=newest)
    since, first, last = times
    resource = row.resource
    if resources > 1:
        resource = f"{resource.partition('[')[0]}[…]" if types == 1 else ""
    return FailureGroup(
        failure_cause=key,
        error=error,
        resource=resource,
        place=place,
        kinds=[kind for kind in Kind if kind in outcomes.split(",")],
        nodes=sorted(loads_again(members.encode())),
        newest=(row.node, row.run),
        release=row.release,
        since=since,
        first=first,
        last=last,
    )


def _with_runs(connection: Connection, groups: Sequence[FailureGroup]) -> Sequence[FailureGroup]:
    """Return failures with what is known of the runs of their newest nodes."""
    worked = run_queries.last_good(connection, [group.newest[0] for group in groups])
    broke = run_queries.first_bad(connection, worked.values())
    causes = run_queries.causes(connection, [group.newest for group in groups])
    return [
        replace(
            group,
            worked=worked.get(group.newest[0]),
            broke=broke[group.newest[0]].release if group.newest[0] in broke else "",
            cause=causes.get(group.newest, ""),
        )
        for group in groups
    ]
