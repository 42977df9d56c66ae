"""Questions of PuppetDB's API about the runs in the dashboard's memory.

- Times are milliseconds since 1970, UTC. A run ends on the day of its id or on the next one, except
  those of `run_table.LONG`, which have an index.
- Days are read one after the other, and the newest or oldest runs need only some of them. Whole
  days are counted without reading runs.
- Every function takes a connection in a transaction.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from localpuppet.base.formats.names import RunId
from localpuppet.base.machine.sqlite import Connection
from localpuppet.node.puppet.resources import ResourceResult
from localpuppet.web.dashboard.run_results import RunResource, RunResult
from localpuppet.web.dashboard.tables import run_queries
from localpuppet.web.dashboard.tables.dated import parts_of, run_of
from localpuppet.web.dashboard.tables.run_queries import IDS
from localpuppet.web.dashboard.tables.run_table import LONG, RESULTS

DAY_MS = 86_400_000
# Runs that are read together.
_TOGETHER = 500
_ENDED = f"(runs.day * {DAY_MS} + at)"
_OF_KEYS = run_queries.FOUND.format(
    "(SELECT runs.* FROM json_each(?) AS chosen CROSS JOIN runs"
    " ON runs.day = chosen.value ->> 0 AND runs.node = chosen.value ->> 1"
    " AND runs.moment = chosen.value ->> 2)"
)
_Values = dict[str, int | str]


class RunKey(NamedTuple):
    """Where a run is: the day of its id, the number of its node's name, and the rest of its id."""

    day: int
    node: int
    moment: int


class LatestRun(NamedTuple):
    """The newest run of a node, as a report of the node needs it."""

    node: str
    day: int
    moment: int
    ended: int
    profile: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFilter:
    """The runs that an answer may have.

    Attributes:
        since: Runs that ended at this time or later.
        until: Runs that ended at this time or earlier.
        nodes: The nodes; `None` for all.
        without: Nodes that are left out.
        profiles: The numbers of profiles; `None` for all.
        latest: Whether only the newest run of each node is needed.
    """

    since: int | None = None
    until: int | None = None
    nodes: Collection[str] | None = None
    without: Collection[str] = ()
    profiles: Collection[int] | None = None
    latest: bool = False


def profiles(connection: Connection) -> dict[int, RunResult]:
    """Return what runs have in common by the number of their profile, as runs without a node."""
    rows = connection.execute(
        "SELECT id, '', 0, 0, 0, outcome, release, '', '', NULL, 0,"
        " commit_id, environment, noop, corrective, refusal, '' FROM profiles"
    )
    return {number: run_queries.result_of(tuple(run)) for number, *run in rows}


def nodes(connection: Connection) -> list[str]:
    """Return the nodes with runs."""
    rows = connection.execute("SELECT text FROM latest JOIN texts ON texts.id = node")
    return [name for (name,) in rows]


def change(connection: Connection) -> int:
    """Return a number that changes with the runs."""
    (number,) = connection.execute("SELECT number FROM run_changes").fetchone()
    return int(number)


def latest(connection: Connection, names: Collection[str] | None = None) -> list[LatestRun]:
    """Return the newest run of each node.

    Args:
        connection: The connection.
        names: The nodes; `None` for all.
    """
    some = "" if names is None else f" WHERE latest.node IN ({IDS.format('?')})"
    rows = connection.execute(
        "SELECT texts.text, latest.day, latest.moment, ended, profile FROM latest"  # noqa: S608
        " CROSS JOIN runs ON runs.day = latest.day AND runs.node = latest.node"
        f" AND runs.moment = latest.moment JOIN texts ON texts.id = latest.node{some}",
        () if names is None else (json.dumps(sorted(names)),),
    )
    return [*map(LatestRun._make, rows)]


def runs(connection: Connection, asked: ReportFilter) -> Iterator[RunResult]:
    """Yield runs without their resources, in no order."""
    for table, where, values in _parts(connection, asked):
        inner = f"(SELECT runs.* FROM {table} WHERE {where})"  # noqa: S608
        yield from map(
            run_queries.result_of, connection.execute(run_queries.FOUND.format(inner), values)
        )


def by_end(
    connection: Connection, asked: ReportFilter, *, descending: bool, most: int, skip: int = 0
) -> list[RunResult]:
    """Return the first runs by the time of their end, without their resources.

    Args:
        connection: The connection.
        asked: The filter.
        descending: Whether the newest runs are first.
        most: Maximum number, including the skipped ones.
        skip: The number of first runs that are not read.
    """
    kept: list[tuple[int, RunKey]] = []
    direction = "DESC" if descending else "ASC"
    parts = _parts(connection, asked)
    for table, where, values in parts if descending else [*parts[:1], *reversed(parts[1:])]:
        day = values.get("day")
        rows = connection.execute(
            f"SELECT {_ENDED}, runs.day, runs.node, runs.moment FROM {table} WHERE {where}"  # noqa: S608
            f" ORDER BY 1 {direction}, 2 {direction}, 3, 4 {direction} LIMIT :most",
            {**values, "most": most},
        )
        kept += [(ended, RunKey(*key)) for ended, *key in rows]
        kept.sort(key=_descending if descending else None, reverse=descending)
        kept = kept[:most]
        # What is left ended on this day at the latest, or on the next one at the earliest.
        edge = None if day is None else (int(day) + 1) * DAY_MS
        if edge is not None and len(kept) == most > 0:
            last = kept[-1][0]
            if last >= edge if descending else last < edge:
                break
    return list(_of_keys(connection, [key for _, key in kept[skip:]]))


def counts(connection: Connection, asked: ReportFilter) -> Counter[int]:
    """Return the number of runs by the number of their profile."""
    counter: Counter[int] = Counter()
    if asked.nodes is None and not asked.latest:
        first, last = _days(connection)
        since = asked.since if asked.since is not None else first * DAY_MS
        until = asked.until if asked.until is not None else (last + 1) * DAY_MS - 1
        begin, end = -(-since // DAY_MS), (until + 1) // DAY_MS
        edges = [(since, until)]
        if begin < end:
            edges = [(since, begin * DAY_MS - 1), (end * DAY_MS, until)]
            rows = connection.execute(
                "SELECT profile, sum(runs) FROM tallies WHERE day >= ? AND day < ? GROUP BY 1",
                (begin, end),
            )
            chosen = asked.profiles
            counter.update({row: runs for row, runs in rows if chosen is None or row in chosen})
        for low, high in edges:
            if low <= high:
                part = replace(asked, since=low, until=high, without=())
                counter.update(_scanned(connection, part))
        if asked.without:
            part = replace(asked, nodes=asked.without, without=())
            counter.subtract(_scanned(connection, part))
        return +counter
    return _scanned(connection, asked)


def events(
    connection: Connection,
    asked: ReportFilter,
    results: Collection[ResourceResult] | None = None,
) -> Iterator[tuple[RunResult, RunResource]]:
    """Yield the resources that runs list, each with its run, in no order.

    Args:
        connection: The connection.
        asked: The filter of the runs.
        results: The results of resources; `None` for all.
    """
    known: dict[RunKey, RunResult] = {}
    for table, where, values in _parts(connection, asked):
        rows = connection.execute(
            "SELECT runs.day, runs.node, runs.moment, resource.text, result"  # noqa: S608
            f" FROM {_with_resources(table)} JOIN texts AS resource"
            f" ON resource.id = resources.resource WHERE {where}{_results(results)}"
            " ORDER BY 1, 2, 3, number",
            values,
        )
        while some := rows.fetchmany(_TOGETHER):
            keys = [RunKey(*event[:3]) for event in some]
            known = {key: known[key] for key in {*keys} & known.keys()}
            new = list(dict.fromkeys(key for key in keys if key not in known))
            known |= zip(new, _of_keys(connection, new), strict=True)
            for key, item in zip(keys, some, strict=True):
                yield known[key], run_queries.resource_of(*item[3:])


def latest_events(
    connection: Connection,
    asked: ReportFilter,
    results: Collection[ResourceResult] | None = None,
) -> Iterator[tuple[str, ResourceResult, bool, int]]:
    """Yield the number of resources that the newest runs list: node, result, drift, number.

    Args:
        connection: The connection.
        asked: The filter of the runs.
        results: The results of resources; `None` for all.
    """
    for table, where, values in _parts(connection, replace(asked, latest=True)):
        rows = connection.execute(
            "SELECT texts.text, result, number FROM (SELECT runs.node AS name, result,"  # noqa: S608
            f" count(*) AS number FROM {_with_resources(table)} WHERE {where}{_results(results)}"
            " GROUP BY 1, 2) JOIN texts ON texts.id = name",
            values,
        )
        for node, result, number in rows:
            yield node, RESULTS[result >> 1], bool(result & 1), number


def _scanned(connection: Connection, asked: ReportFilter) -> Counter[int]:
    counter: Counter[int] = Counter()
    for table, where, values in _parts(connection, asked):
        counter.update(
            dict(
                connection.execute(
                    f"SELECT profile, count(*) FROM {table} WHERE {where} GROUP BY 1",  # noqa: S608
                    values,
                ).fetchall()
            )
        )
    return counter


def _parts(connection: Connection, asked: ReportFilter) -> list[tuple[str, str, _Values]]:
    """Return the queries that find all runs of a filter: tables, condition and values.

    The first one is of long runs and the others of one day each, the newest first; or there is one
    of the newest runs.
    """
    where, values = _condition(asked)
    if asked.latest:
        tables = (
            "latest CROSS JOIN runs ON runs.day = latest.day AND runs.node = latest.node"
            " AND runs.moment = latest.moment"
        )
        return [(tables, where, values)]
    first, last = _days(connection)
    if asked.until is not None:
        last = min(last, asked.until // DAY_MS)
    if asked.since is not None:
        first = max(first, asked.since // DAY_MS - 1)
    long = ("runs INDEXED BY long_runs", f"at >= {LONG} AND {where}", values)
    return [long] + [
        ("runs", f"runs.day = :day AND at < {LONG} AND {where}", {**values, "day": day})
        for day in range(last, first - 1, -1)
    ]


def _condition(asked: ReportFilter) -> tuple[str, _Values]:
    where, values = "1", _Values()
    for name, sign in (("since", ">="), ("until", "<=")):
        time = getattr(asked, name)
        if time is not None:
            where += f" AND {_ENDED} {sign} :{name}"
            values[name] = time
    if asked.nodes is not None:
        where += f" AND runs.node IN ({IDS.format(':nodes')})"
        values["nodes"] = json.dumps(sorted(asked.nodes))
    if asked.without:
        where += f" AND runs.node NOT IN ({IDS.format(':without')})"
        values["without"] = json.dumps(sorted(asked.without))
    if asked.profiles is not None:
        where += " AND profile IN (SELECT value FROM json_each(:profiles))"
        values["profiles"] = json.dumps(sorted(asked.profiles))
    return where, values


def _with_resources(tables: str) -> str:
    return (
        f"{tables} CROSS JOIN resources ON resources.day = runs.day"
        " AND resources.node = runs.node AND resources.moment = runs.moment"
    )


def _results(results: Collection[ResourceResult] | None) -> str:
    if results is None:
        return ""
    # SQLite has no plan for an index and an empty list, so -1 is always there.
    numbers = [-1, *(place for place, item in enumerate(RESULTS) if item in results)]
    return f" AND result >> 1 IN ({', '.join(map(str, numbers))})"


def _days(connection: Connection) -> tuple[int, int]:
    """Return the first and the last day of the ids of runs; an empty range without a run."""
    row = connection.execute(
        "SELECT (SELECT min(day) FROM runs), (SELECT max(day) FROM runs),"
        " (SELECT max(day) FROM tallies)"
    ).fetchone()
    return (0, -1) if row[0] is None else (row[0], max(row[1:]))


def _descending(item: tuple[int, RunKey]) -> tuple[int, int, int, int]:
    ended, key = item
    return ended, key.day, -key.node, key.moment


def _of_keys(connection: Connection, keys: list[RunKey]) -> Iterator[RunResult]:
    """Yield runs in the order of their keys."""
    for begin in range(0, len(keys), _TOGETHER):
        some = keys[begin : begin + _TOGETHER]
        results = map(run_queries.result_of, connection.execute(_OF_KEYS, (json.dumps(some),)))
        names = {(item.run, item.node): item for item in results}
        numbers = _names(connection, {key.node for key in some})
        yield from (names[run_of(key.day, key.moment), numbers[key.node]] for key in some)


def _names(connection: Connection, numbers: Iterable[int]) -> Mapping[int, str]:
    rows = connection.execute(
        "SELECT id, text FROM texts WHERE id IN (SELECT value FROM json_each(?))",
        (json.dumps([*numbers]),),
    )
    return dict(rows.fetchall())


def of_runs(connection: Connection, keys: Iterable[tuple[str, RunId]]) -> list[RunResult]:
    """Return some runs, with their resources, by node and id; without those that are unknown."""
    results = (run_queries.of_id(connection, run, node) for node, run in keys)
    return [item for item in results if item is not None]


def with_resources(connection: Connection, all_: Iterable[RunResult]) -> Iterator[RunResult]:
    """Yield runs with their resources, in the same order."""
    waiting = iter(all_)
    while some := list(islice(waiting, _TOGETHER)):
        rows = connection.execute(
            "SELECT chosen.key, text, result FROM json_each(?) AS chosen CROSS JOIN resources"
            " ON resources.day = chosen.value ->> 0 AND moment = chosen.value ->> 1"
            " AND node = (SELECT id FROM texts WHERE texts.text = chosen.value ->> 2)"
            " JOIN texts ON texts.id = resource ORDER BY chosen.key, number",
            (json.dumps([(*parts_of(RunId(run.run)), run.node) for run in some]),),
        )
        listed: dict[int, list[RunResource]] = {}
        for place, text, result in rows:
            listed.setdefault(place, []).append(run_queries.resource_of(text, result))
        for place, item in enumerate(some):
            yield replace(item, resources=tuple(listed[place])) if place in listed else item


def resource_totals(connection: Connection, names: Collection[str]) -> list[int]:
    """Return the number of resources of each node's newest run that has a summary.

    Args:
        connection: The connection.
        names: The nodes.
    """
    rows = connection.execute(
        "SELECT counts.text FROM latest CROSS JOIN runs ON runs.day = latest.day"  # noqa: S608
        " AND runs.node = latest.node AND runs.moment = latest.moment"
        " JOIN texts AS counts ON counts.id = runs.counts"
        f" WHERE latest.node IN ({IDS.format('?')})",
        (json.dumps(sorted(names)),),
    )
    return [int(text.partition(",")[0] or 0) for (text,) in rows]
