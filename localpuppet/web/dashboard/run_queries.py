"""Questions about the runs in the dashboard's memory.

Every function takes a connection in a transaction.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from localpuppet.base.formats.names import RunId
from localpuppet.base.machine.sqlite import Connection
from localpuppet.base.value import Value
from localpuppet.fleet.history.history_records import DAY, ResourceSummary, RunCounts, place_of
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.web.dashboard.list_query import RUNS, ListPage, ListQuery
from localpuppet.web.dashboard.run_table import (
    COUNTS,
    GOOD_KINDS,
    HAS_ID,
    KEPT,
    MILLI,
    MOMENTS,
    RESULTS,
    RunRow,
    filed,
    id_values,
    parts_of,
    run_of,
)

# Pairs of a node and a resource that drift, those that drift most.
MOST_DRIFTING = 10_000
# Runs with their texts; `{}` is a table of runs.
FOUND = """
SELECT node.text, runs.day, moment, at, outcome, release, reason.text, cause.text, seconds, more,
    commit_id, environment, noop, corrective, refusal, counts.text, place.text FROM {} AS runs
JOIN texts AS node ON node.id = runs.node JOIN profiles ON profiles.id = runs.profile
JOIN texts AS reason ON reason.id = runs.reason JOIN texts AS cause ON cause.id = runs.cause
LEFT JOIN texts AS counts ON counts.id = runs.counts
LEFT JOIN texts AS place ON place.id = runs.place
"""
_ALL = FOUND.format("runs")

_Found = tuple[Any, ...]
# The numbers of the texts in a JSON array, and of the profiles with the outcomes in one.
IDS = "SELECT id FROM texts WHERE text IN (SELECT value FROM json_each({}))"
OUTCOMES = "SELECT id FROM profiles WHERE outcome IN (SELECT value FROM json_each({}))"
_KEY = "runs.day, runs.node, runs.moment"
_NAMED = "SELECT id FROM nodes CROSS JOIN texts ON text = nodes.node WHERE instr(text, :name)"
_HOUR = 3_600_000
# The hour with the oldest run that a list has; hours count also runs that left a full day.
_ENOUGH = f"""
SELECT ifnull(max(hour), 0) FROM (
    SELECT hour, sum(runs) OVER (ORDER BY hour DESC) AS number FROM hours
    WHERE hour <= :until / {_HOUR} AND outcome IN (SELECT value FROM json_each(:kinds))
) WHERE number >= 2 * :limit
"""  # noqa: S608
_ORDERS = {
    "at": ("day", "at"),
    "node": ("(SELECT text FROM texts WHERE id = node)",),
    "outcome": ("(SELECT outcome FROM profiles WHERE id = profile)",),
}


class NodeDrift(Value):
    """A resource that runs of a node corrected.

    The last of them was requested at `last`, and is filed under a day and a moment.
    """

    node: str
    resource: str
    place: str
    count: int
    last: float
    filed: tuple[int, int]

    @property
    def run(self) -> RunId:
        """Return the id of the last of them: of ten thousand rows, a page needs a few."""
        return run_of(*self.filed)


def of_node(
    connection: Connection,
    node: str,
    *,
    limit: int,
    before: RunId | None = None,
    kinds: Collection[Kind] = tuple(Kind),
) -> list[RunRow]:
    """Return runs of a node before another one, newest first."""
    number = connection.execute("SELECT id FROM texts WHERE text = ?", (node,)).fetchone()
    # Each by itself: SQLite looks at the index for one, and at every run for both.
    days = "SELECT (SELECT min(day) FROM runs), (SELECT max(day) FROM runs)"
    first, last = connection.execute(days).fetchone()
    if number is None or first is None:
        return []
    # Of later ones than all there are, where none is named.
    begin, moment = (last + 1, 0) if before is None else _place_of(connection, before, *number)
    rows: list[_Found] = []
    for day in range(min(begin, last + 1), first - 1, -1):
        rows += connection.execute(
            f"{_ALL} WHERE runs.day = ?1 AND node = ?2 AND (?1 < ?3 OR moment < ?4)"  # noqa: S608
            " AND outcome IN (SELECT value FROM json_each(?6)) ORDER BY moment DESC LIMIT ?5",
            (day, *number, begin, moment, limit - len(rows), json.dumps([*kinds])),
        )
        if len(rows) == limit:
            break
    return with_resources(connection, map(result_of, rows))


def _place_of(connection: Connection, run: RunId, node: int) -> tuple[int, int]:
    """Return the day and moment of a run; those of its request if it is not known."""
    known: tuple[int, int] | None = connection.execute(
        f"SELECT day, moment FROM runs WHERE node = :node AND {HAS_ID}",  # noqa: S608
        {"node": node, **id_values(run)},
    ).fetchone()
    return known or parts_of(run)


def of_id(connection: Connection, run: RunId, node: str) -> RunRow | None:
    """Return the end of a run of a node, or `None`."""
    result = _without_resources(connection, run, node)
    return None if result is None else with_resources(connection, [result])[0]


def _without_resources(connection: Connection, run: RunId, node: str) -> RunRow | None:
    row = connection.execute(
        f"{_ALL} WHERE runs.node = (SELECT id FROM texts WHERE text = :node) AND {HAS_ID}",  # noqa: S608
        {"node": node, **id_values(run)},
    ).fetchone()
    return None if row is None else result_of(row)


def between(connection: Connection, first: RunId, last: RunId, *, limit: int) -> list[RunRow]:
    """Return the ends of runs with ids of one day, newest first."""
    (day, begin), (_, end) = parts_of(first), parts_of(last)
    rows = connection.execute(
        f"{_ALL} WHERE (runs.day, runs.node, moment) IN"  # noqa: S608
        " (SELECT day, node, moment FROM runs WHERE day = ?1 AND moment BETWEEN ?2 AND ?3"
        f" OR moment < 0 AND day > ?1 AND moment + (day - ?1) * {MOMENTS} BETWEEN ?2 AND ?3"
        f" ORDER BY moment + (day - ?1) * {MOMENTS} DESC LIMIT ?4)"
        f" ORDER BY moment + (runs.day - ?1) * {MOMENTS} DESC",
        (day, begin, end, limit),
    )
    return [result_of(row) for row in rows]


def listed(
    connection: Connection,
    asked: ListQuery,
    names: Collection[str] | None,
    *,
    now: float,
    limit: int = RUNS.most,
) -> ListPage[RunRow]:
    """Return a page of runs of many nodes, at most the newest `limit` on all pages."""
    filters = {
        "node = (SELECT id FROM texts WHERE text = :node)": asked.node,
        f"node IN ({_NAMED})": asked.name,
        f"node IN ({IDS.format(':nodes')})": names is not None,
    }
    since = round((now - KEPT if asked.since is None else asked.since) * MILLI)
    until = round((now + DAY if asked.until is None else asked.until) * MILLI)
    kinds = json.dumps([kind for kind in Kind if asked.result in ("", kind.part)])
    if not any(filters.values()):
        # Of all nodes, no hour is read before those that have enough runs.
        enough = {"until": until, "kinds": kinds, "limit": limit}
        ((hour,),) = connection.execute(_ENOUGH, enough)
        since = max(since, hour * _HOUR)
    # Days on which no run ended so are not searched.
    newest = (
        "SELECT day, node, moment, at, profile FROM runs WHERE day IN (SELECT hour / 24 FROM hours"  # noqa: S608
        f" WHERE hour BETWEEN :since / {_HOUR} AND :until / {_HOUR}"
        " AND outcome IN (SELECT value FROM json_each(:kinds)))"
        # The condition that most rows fail is the first.
        f"{''.join(f' AND {text}' for text, given in filters.items() if given)}"
        " AND (day, at) >= (:since / 86400000, :since % 86400000)"
        " AND (day, at) < (:until / 86400000, :until % 86400000)"
        f" AND profile IN ({OUTCOMES.format(':kinds')})"
        " ORDER BY day DESC, at DESC LIMIT :limit"
    )
    down = " DESC" if asked.down else ""
    order = ", ".join(f"{key}{down}" for key in _ORDERS[asked.order])
    order += ", day DESC, at DESC, node"
    values = {
        "since": since,
        "until": until,
        "kinds": kinds,
        "node": asked.node,
        "name": asked.name,
        "nodes": json.dumps(sorted(names or ())),
        "limit": limit,
    }
    select = f"SELECT day, node, moment, count(*) OVER () FROM ({newest}) ORDER BY {order}"  # noqa: S608
    keys = ListPage.read(connection, select, values, asked, lambda *key: key)
    found = (
        result_of(row)
        for key in keys.rows
        for row in connection.execute(f"{_ALL} WHERE ({_KEY}) = (?, ?, ?)", key)
    )
    return ListPage(rows=with_resources(connection, found), total=keys.total, page=keys.page)


def first_of_release(connection: Connection, release: str) -> float | None:
    """Return when the first known run with a release ended, or `None`: seconds since 1970."""
    ((day, at),) = connection.execute(
        "SELECT day, min(at) FROM runs"
        " WHERE day = (SELECT min(first) FROM profiles WHERE release = ?1)"
        " AND profile IN (SELECT id FROM profiles WHERE release = ?1)",
        (release,),
    )
    return None if at is None else float(day * DAY + at / MILLI)


def last_good(connection: Connection, nodes: Iterable[str]) -> Mapping[str, RunRow]:
    """Return the last run of each node that was no failure and no noop run, if there is one."""
    runs = [of_node(connection, node, limit=1, kinds=GOOD_KINDS) for node in nodes]
    return {run.node: run for of_one in runs for run in of_one}


def first_bad(connection: Connection, good: Iterable[RunRow]) -> Mapping[str, RunRow]:
    """Return the first failed run of each node after a good one, if there is one."""
    kinds = json.dumps([kind for kind in Kind if kind.bad])
    (last,) = connection.execute("SELECT max(day) FROM runs").fetchone()
    found = {}
    for run in good:
        day, moment = filed(RunId(run.run), run.finished_at)
        for later in range(day, (last or 0) + 1):
            row = connection.execute(
                f"{_ALL} WHERE runs.day = ?1 AND node = (SELECT id FROM texts WHERE text = ?2)"  # noqa: S608
                " AND (?1 > ?3 OR moment > ?4) AND outcome IN (SELECT value FROM json_each(?5))"
                " ORDER BY moment LIMIT 1",
                (later, run.node, day, moment, kinds),
            ).fetchone()
            if row is not None:
                found[run.node] = result_of(row)
                break
    return found


def causes(
    connection: Connection, runs: Iterable[tuple[str, str]]
) -> Mapping[tuple[str, str], str]:
    """Return what led to runs, by node and id; without the runs that are not known."""
    results = (_without_resources(connection, RunId(run), node) for node, run in runs if run)
    return {(result.node, result.run): result.cause for result in results if result is not None}


def with_resources(connection: Connection, runs: Iterable[RunRow]) -> list[RunRow]:
    return [
        run if run.seconds is None else replace(run, resources=_resources(connection, run))
        for run in runs
    ]


def days_of(
    connection: Connection, node: str, days: Sequence[int]
) -> Mapping[tuple[int, Kind], int]:
    """Return counts of a node's runs by the day on which they ended and by result."""
    rows = connection.execute(
        "SELECT runs.day, outcome, count(*) FROM runs"
        " JOIN profiles ON profiles.id = runs.profile"
        " WHERE runs.day IN (SELECT value FROM json_each(?))"
        " AND node = (SELECT id FROM texts WHERE text = ?) GROUP BY 1, 2",
        (json.dumps([*days]), node),
    )
    return {(day, Kind(outcome)): count for day, outcome, count in rows}


def drifting(connection: Connection, *, since: int) -> list[NodeDrift]:
    """Return the resources that runs corrected, by node; the most often corrected first."""
    declared = cache(_declared)
    rows = connection.execute(
        "SELECT node.text, resource.text, runs, last, drift.day, moment FROM"
        " (SELECT node, resource, count(*) AS runs, day, moment,"
        " max(day * 86400000 + (moment >> 16) / 1000) AS last FROM resources"
        " WHERE day >= ? AND result & 1 GROUP BY node, resource"
        " ORDER BY runs DESC, last DESC LIMIT ?) AS drift"
        " JOIN texts AS node ON node.id = drift.node"
        " JOIN texts AS resource ON resource.id = drift.resource ORDER BY runs DESC, last DESC",
        (since, MOST_DRIFTING),
    )
    return [
        NodeDrift(
            node=node,
            resource=resource,
            place=place_of(file, line),
            count=count,
            last=last / MILLI,
            filed=(day, moment),
        )
        for node, text, count, last, day, moment in rows
        for resource, file, line, _ in (declared(text),)
    ]


def _resources(connection: Connection, run: RunRow) -> tuple[ResourceSummary, ...]:
    rows = connection.execute(
        "SELECT resource.text, result FROM resources"
        " JOIN texts AS resource ON resource.id = resources.resource"
        " WHERE resources.day = ? AND moment = ?"
        " AND node = (SELECT id FROM texts WHERE text = ?) ORDER BY number",
        (*filed(RunId(run.run), run.finished_at), run.node),
    )
    return tuple(resource_of(text, number) for text, number in rows)


def resource_of(text: str, number: int) -> ResourceSummary:
    """Return a resource of a row of `resources`."""
    resource, file, line, containing_class = _declared(text)
    type_, _, title = resource.partition("[")
    return ResourceSummary(
        type=type_,
        title=title.removesuffix("]"),
        file=file,
        line=line,
        containing_class=containing_class,
        status=RESULTS[number >> 1],
        corrective_change=bool(number & 1),
    )


def _declared(text: str) -> tuple[str, str, int | None, str]:
    """Return a resource, its file, line and class; a long text was cut when it was stored."""
    line, file, containing_class, resource, *_ = *text.split("\t", 3), "", "", ""
    return resource, file, int(line) if line else None, containing_class


def result_of(row: _Found) -> RunRow:
    """Return a run of a row of `FOUND`."""
    node, day, moment, at, outcome, release, reason, cause, seconds, more, *rest = row
    commit, environment, noop, corrective, refusal, counts, place = rest
    return RunRow(
        node=node,
        run=run_of(day, moment),
        finished_at=day * DAY + at / MILLI,
        outcome=Kind(outcome),
        release=release,
        reason=reason,
        place=place or "",
        cause=cause,
        seconds=seconds,
        more=more,
        commit=commit,
        environment=environment,
        noop=bool(noop),
        corrective_change=bool(corrective),
        refusal=refusal,
        counts=None if counts is None else counts_of(counts),
    )


def counts_of(text: str) -> RunCounts:
    """Return the counts in a text of `FOUND`."""
    numbers = map(int, text.split(",")) if text else ()
    return RunCounts(**dict(zip(COUNTS, numbers, strict=False)))
