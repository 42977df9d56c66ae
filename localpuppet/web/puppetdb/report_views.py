"""Reports, events and the report columns of nodes as SQL over the runs in the dashboard's memory.

- Each relation is made of `_runs`: the columns of a run and its profile. Reports that nodes should
  have sent (`missing_report`) are in a temporary table with the same columns.
- `Relation.keys` name the day, the number of the node and the moment: the key of the table of runs.
  So SQLite finds the runs of a node, of a time and of a hash, and the newest first.
- Reports that are only counted, by columns that all runs of a profile share, are counted by day.
- A run that did not end well is never `unchanged`: Puppet's own report of a failed compilation may
  say so. A cancelled run and one with an unknown end are `failed`, too.
- `configuration_version` and `code_id` are the commit of the release, or its name if the commit is
  unknown. `producer` is the node, which sends its own summaries. All times but `start_time` are the
  end of the run.
- A run summary has no values, so `property`, `old_value`, `new_value` and `message` of an event are
  null. Its containment path is null, too: only the node has it.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from uuid import UUID

from localpuppet.base.formats.names import RunId
from localpuppet.base.formats.strict_json import compact, loads_again
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.sqlite import Connection
from localpuppet.fleet.history.history_records import DAY
from localpuppet.fleet.inventory.presence import NOT_TRUSTED, UNRESPONSIVE, NodeRow
from localpuppet.fleet.inventory.query import tree
from localpuppet.fleet.inventory.query.compiling import JSON, OF_ENTRY, Relation, TimeColumn
from localpuppet.fleet.inventory.query.records import QueryContext, allowed, columns_of, counts_by
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.node.puppet.resources import ResourceResult
from localpuppet.web.dashboard import run_queries, run_table
from localpuppet.web.dashboard.nodes import MAY_MISS, of_name, of_text
from localpuppet.web.dashboard.run_table import RunRow
from localpuppet.web.puppetdb import report_rows
from localpuppet.web.puppetdb.report_rows import FoundReport, hash_of, node_digits, parse_hash

# Puppet 7 and 8 write reports of this format.
REPORT_FORMAT = 12
EVENT_STATUS = {
    ResourceResult.FAILED: "failure",
    ResourceResult.CHANGED: "success",
    ResourceResult.WOULD_CHANGE: "noop",
    ResourceResult.SKIPPED: "skipped",
}
# The columns of runs; missing reports have a table of them.
_COLUMNS = (
    "certname TEXT, day INTEGER, node INTEGER, moment INTEGER, at INTEGER, outcome TEXT,"
    " release TEXT, environment TEXT, commit_id TEXT, noop INTEGER, corrective INTEGER,"
    " seconds INTEGER, reason TEXT, cause TEXT, counts TEXT, newest INTEGER"
)
_TABLES = f"""
CREATE TEMP TABLE missing ({_COLUMNS}, PRIMARY KEY (certname)) STRICT;
CREATE TEMP VIEW forgotten AS SELECT id FROM history.texts WHERE text IN
    (SELECT value FROM json_each(forgotten_nodes()) EXCEPT SELECT node FROM history.nodes);
CREATE TEMP VIEW others AS SELECT node AS certname FROM history.nodes
    WHERE NOT EXISTS (SELECT 1 FROM live WHERE certname = node);
CREATE TEMP VIEW days AS SELECT day FROM history.tallies UNION SELECT day FROM temp.missing;
CREATE TEMP VIEW numbers AS SELECT id, text FROM history.texts
    UNION ALL SELECT node, certname FROM temp.missing WHERE node < 0;
"""  # noqa: S608
_TEXT = "(SELECT text FROM history.texts WHERE id = runs.{0}) AS {0}"
_RUNS = (
    "SELECT name.text AS certname, {key}, at, outcome, release, environment, commit_id, noop,"  # noqa: S608
    f" corrective, seconds, {', '.join(map(_TEXT.format, ('reason', 'cause', 'counts')))},"
    " CAST({newest} AS INTEGER) AS newest FROM {runs}"
    " CROSS JOIN history.profiles ON profiles.id = runs.profile"
    " CROSS JOIN history.texts AS name ON name.id = runs.node"
    f" WHERE {run_table.IS_COUNTED} AND {{some}}"
)
_KEY = "runs.day, runs.node, runs.moment"
_LATEST_KEY = "latest.day, latest.node, latest.moment"
_LATEST = f"history.latest CROSS JOIN history.runs ON ({_KEY}) = ({_LATEST_KEY})"
_IS_NEWEST = f"EXISTS (SELECT 1 FROM history.latest WHERE ({_LATEST_KEY}) = ({_KEY}))"  # noqa: S608
_IS_MISSING = "runs.node IN (SELECT node FROM temp.missing)"
_PARTS = "outcome, release, environment, commit_id, noop, corrective"
_TALLIES = (
    f"SELECT {_PARTS}, runs AS number FROM history.tallies JOIN history.profiles ON id = profile"  # noqa: S608
    f" WHERE runs > 0 AND {run_table.IS_COUNTED} UNION ALL SELECT {_PARTS}, -1 FROM history.runs"
    f" JOIN history.profiles ON profiles.id = profile WHERE {run_table.IS_COUNTED}"
    " AND runs.day IN (SELECT day FROM temp.days)"
    " AND runs.node IN (SELECT id FROM temp.forgotten)"
    f" UNION ALL SELECT {_PARTS}, 1 FROM temp.missing"
    " WHERE node NOT IN (SELECT id FROM temp.forgotten)"
)
# The nodes that may have to send a report, with their newest one, in the memory with a name.
_MAY_MISS = f"""
SELECT row, ifnull(texts.id, -n.rowid), ended, last.outcome FROM {{0}}.nodes AS n
LEFT JOIN {{0}}.texts ON text = n.node LEFT JOIN {{0}}.latest ON latest.node = texts.id
LEFT JOIN {{0}}.runs ON ({_KEY}) = ({_LATEST_KEY}) LEFT JOIN {{0}}.profiles AS last
    ON last.id = runs.profile
WHERE {MAY_MISS} < :now AND {{1}} AND (severity > 0 OR state IN ('{NOT_TRUSTED}', '{UNRESPONSIVE}')
    OR late_from < :now OR NOT ifnull(ended >= finished_at * 1000, 0))
"""  # noqa: S608
_LIVE = f"SELECT {OF_ENTRY} FROM live"  # noqa: S608
_EVERY = f"{_LIVE} UNION ALL SELECT certname{', NULL' * 6} FROM temp.others"  # noqa: S608
# Nodes with the columns of their newest report, which are null for a node without one.
_WITH_NEWEST = (
    "SELECT n.*, coalesce(m.day, runs.day) AS day, coalesce(m.moment, runs.moment) AS moment,"  # noqa: S608
    " coalesce(m.at, runs.at) AS at, coalesce(m.outcome, last.outcome) AS outcome,"
    " coalesce(m.environment, last.environment) AS environment,"
    " coalesce(m.noop, last.noop) AS noop, coalesce(m.corrective, last.corrective) AS corrective"
    " FROM ({}) AS n LEFT JOIN history.texts AS name ON name.text = n.certname"
    " LEFT JOIN history.latest ON latest.node = name.id"
    f" LEFT JOIN history.runs ON ({_KEY}) = ({_LATEST_KEY})"
    " LEFT JOIN history.profiles AS last ON last.id = runs.profile"
    " LEFT JOIN temp.missing AS m ON m.certname = n.certname"
)
# The number of resources of the newest run of `certname`.
_TOTAL = (
    "(SELECT CAST(counts.text AS INTEGER) FROM history.texts AS name"  # noqa: S608
    f" CROSS JOIN {_LATEST} AND latest.node = name.id"
    " JOIN history.texts AS counts ON counts.id = runs.counts WHERE name.text = certname)"
)


def _case(values: Mapping[Any, str], column: str) -> str:
    cases = " ".join(f"WHEN '{name}' THEN '{value}'" for name, value in values.items())
    return f"CASE {column} {cases} END"


def _shown(milliseconds: str) -> str:
    return f"strftime('%Y-%m-%dT%H:%M:%fZ', {milliseconds} / 1000.0, 'unixepoch')"


def _is(condition: str) -> str:
    return f"CASE WHEN {condition} THEN 'true' ELSE 'false' END"


def _part(name: str, data: str) -> str:
    """Return a part of a report with its path."""
    href = f"'/pdb/query/v4/reports/' || {_HASH} || '/{name}'"
    return f"json_object('href', {href}, 'data', json({data}))"


_ENDED, _STARTED = "(day * 86400000 + at)", "(day * 86400000 + at - 1000 * ifnull(seconds, 0))"
_END, _START = _shown(_ENDED), _shown(_STARTED)
_HASH, _UUID = "report_hash(certname, day, moment)", "report_uuid(certname, day, moment)"
# The columns of a report that all runs of a profile share.
_PROFILE = {
    "environment": "coalesce(nullif(environment, ''), 'production')",
    "status": _case(report_rows.STATUS, "outcome"),
    "noop": _is(f"noop OR outcome IN ('{Kind.NOOP_PENDING}', '{Kind.NOOP_CLEAN}')"),
    "noop_pending": _is(f"outcome = '{Kind.NOOP_PENDING}'"),
    "corrective_change": _is(f"corrective OR outcome = '{Kind.CORRECTED}'"),
    # Run summaries do not have it; Puppetboard's list of reports requires a text.
    "puppet_version": "''",
    "report_format": f"'{REPORT_FORMAT}'",
    "configuration_version": "coalesce(nullif(commit_id, ''), release)",
    "code_id": "nullif(commit_id, '')",
    "job_id": "NULL",
    "cached_catalog_status": "'not_used'",
    "type": "'agent'",
}
# The resources of the run `b`.
_LISTED = "history.resources CROSS JOIN history.texts ON texts.id = resources.resource"
_OF_RUN = "(resources.day, resources.node, resources.moment) = (b.day, b.node, b.moment)"
_EACH = (
    f"(SELECT {{}} FROM (SELECT text, declared(text) AS declared, result FROM {_LISTED}"  # noqa: S608
    f" WHERE {_OF_RUN} ORDER BY number))"
)
# The columns of an event that a resource has.
_EVENT = {
    "status": _case(
        {str(number): EVENT_STATUS[result] for number, result in enumerate(run_table.RESULTS)},
        "CAST(result >> 1 AS TEXT)",
    ),
    "corrective_change": _is("result & 1"),
    "resource_type": "declared ->> 'type'",
    "resource_title": "declared ->> 'title'",
    "file": "declared ->> 'file'",
    "line": "nullif(declared -> 'line', 'null')",
    "containing_class": "declared ->> 'class'",
    **dict.fromkeys(("property", "name", "old_value", "new_value", "message"), "NULL"),
    "containment_path": "NULL",
}
_MEMBERS = ", ".join(
    f"'{name}', {f'json({sql})' if name in JSON else sql}"
    for name, sql in {"timestamp": _END, **_EVENT}.items()
)
_EVENTS = {
    "certname": "certname",
    "report": _HASH,
    "environment": _PROFILE["environment"],
    "configuration_version": _PROFILE["configuration_version"],
    "run_start_time": _START,
    **dict.fromkeys(("run_end_time", "report_receive_time", "timestamp"), _END),
    **_EVENT,
}
_LOG = (
    f"log_of({_ENDED}, outcome, release, reason, cause, seconds,"
    f" {_EACH.format('json_group_array(json_array(text, result))')})"
)
_REPORT = {
    "hash": _HASH,
    "certname": "certname",
    **_PROFILE,
    "start_time": _START,
    **dict.fromkeys(("end_time", "producer_timestamp", "receive_time"), _END),
    "producer": "certname",
    **dict.fromkeys(("transaction_uuid", "catalog_uuid"), _UUID),
    "metrics": _part("metrics", "metrics_of(seconds, counts)"),
    "logs": _part("logs", _LOG),
    "resource_events": _part("events", _EACH.format(f"json_group_array(json_object({_MEMBERS}))")),
}
_OF_NODE = {
    "report_timestamp": _END,
    "report_environment": _PROFILE["environment"],
    "latest_report_status": _PROFILE["status"],
    "latest_report_noop": _PROFILE["noop"],
    "latest_report_noop_pending": _PROFILE["noop_pending"],
    "latest_report_corrective_change": _PROFILE["corrective_change"],
    "latest_report_hash": _HASH,
    "latest_report_job_id": "NULL",
    "cached_catalog_status": _PROFILE["cached_catalog_status"],
}
_OF_DAY = run_table.HAS_ID.replace(":of_day", "hash_day(value)")
_FOUND = _OF_DAY.replace(":moment", "hash_moment(value)")
_BY_NODE = (
    "r.day IN (SELECT day FROM temp.days)"
    " AND r.node IN (SELECT id FROM temp.numbers WHERE text IN ({}))"
)
_BY_HASH = (
    # A compound SELECT must be an inner one: SQLite finds no rows by it otherwise.
    "(r.day, r.node, r.moment) IN (SELECT * FROM (WITH wanted (value) AS ({}), digits AS"  # noqa: S608
    " MATERIALIZED (SELECT node_digits(text) AS text, id FROM history.latest"
    f" JOIN history.texts ON id = node) SELECT {_KEY} FROM wanted"
    " CROSS JOIN digits ON digits.text = substr(value, -21)"
    f" CROSS JOIN history.runs ON runs.node = digits.id AND {_FOUND}"
    " UNION ALL SELECT day, node, moment FROM temp.missing))"
)
_ENDS = TimeColumn(sql="(r.day * 86400000 + r.at)", day="r.day")
_STARTS = TimeColumn(
    sql="(r.day * 86400000 + r.at - 1000 * ifnull(r.seconds, 0))", day="r.day", is_of_day=False
)
_TIMES = {
    **dict.fromkeys(("end_time", "producer_timestamp", "receive_time"), _ENDS),
    **dict.fromkeys(("timestamp", "run_end_time", "report_receive_time"), _ENDS),
    **dict.fromkeys(("start_time", "run_start_time"), _STARTS),
}
_NATURAL = ("r.day", "r.node", "r.moment")


@dataclass(slots=True, eq=False)
class ReportViews:
    """The relations; a `RecordSource`."""

    file: Path
    # Lends a connection to the dashboard's memory that sees no later write.
    snapshot: Callable[[], AbstractContextManager[Connection]]
    _: KW_ONLY
    now: Callable[[], float]
    # Returns the nodes that were forgotten, also those that came back; called in any thread.
    forgotten: Callable[[], Collection[str]] = frozenset
    entities: Collection[tree.Entity] = (tree.Entity.REPORTS, tree.Entity.EVENTS, tree.Entity.NODES)

    def relation(self, select: tree.Select, question: QueryContext) -> Relation | None:
        """Return reports, events or nodes; see `RecordSource`."""
        self.attach(question)
        if select.entity is tree.Entity.NODES:
            return self._nodes(select, question)
        if select.entity is tree.Entity.REPORTS and counts_by(select, _PROFILE):
            self._fill(question, None)
            sql = f"(SELECT {_listed(_PROFILE)}, number FROM ({_TALLIES}))"  # noqa: S608
            return Relation(sql=sql, number="r.number")
        is_of_events = select.entity is tree.Entity.EVENTS
        used, hash_ = columns_of(select), "report" if is_of_events else "hash"
        if not is_of_events or tree.LATEST in used:
            self._fill(question, allowed(select.where, "certname", lambda *_: None))
        columns = {
            name: sql
            for name, sql in (_EVENTS if is_of_events else _REPORT).items()
            if name in used or name == "certname"
        }
        some = ["1"]
        if tree.NODE_STATE in used:
            is_away = "b.node IN (SELECT id FROM temp.forgotten)"
            columns[tree.NODE_STATE] = f"CASE WHEN {is_away} THEN 'inactive' ELSE 'active' END"
        else:
            some.append("b.node NOT IN (SELECT id FROM temp.forgotten)")
        if tree.LATEST in used:
            columns[tree.LATEST] = _is("newest")
        is_latest = any(
            tree.is_equality(part, tree.LATEST) and part.value is True
            for part in tree.conjuncts(select.where)
        )
        runs, number = _runs(latest=is_latest, asks=tree.LATEST in used), ""
        if is_of_events:
            number, join = ", number", f" CROSS JOIN {_LISTED} WHERE {_OF_RUN}"
            runs = f"SELECT b.*, number, result, declared(text) AS declared FROM ({runs}) b{join}"  # noqa: S608
        else:
            runs += " UNION ALL SELECT * FROM temp.missing"
        key = "b.day, b.node, b.moment, b.at, b.seconds"
        return Relation(
            sql=f"(SELECT {_listed(columns)}, {key}{number}"  # noqa: S608
            f" FROM ({runs}) b WHERE {' AND '.join(some)})",
            key=() if is_of_events else _NATURAL,
            natural=(*_NATURAL, "r.number") if is_of_events else _NATURAL,
            times=_TIMES,
            sorts={name: ("r.day", "r.at") for name, time in _TIMES.items() if time is _ENDS},
            keys={"certname": _BY_NODE, hash_: _BY_HASH},
        )

    def attach(self, question: QueryContext) -> None:
        """Attach the memory to the connection of a question as `history`, once."""
        connection = question.connection
        if "history" in question.known:
            return
        question.known.add("history")
        for name, count, function in _FUNCTIONS:
            connection.create_function(name, count, function, deterministic=True)
        connection.create_function("forgotten_nodes", 0, lambda: compact([*self.forgotten()]))
        connection.execute(f"ATTACH '{self.file.absolute().as_uri()}?mode=ro' AS history")
        with question.writing():
            for statement in _TABLES.split(";"):
                connection.execute(statement)

    def total(self, question: QueryContext) -> str:
        """Return the number of resources of a node's newest run, as SQL for a row of `live`."""
        self.attach(question)
        return _TOTAL

    def _fill(self, question: QueryContext, names: Collection[Json] | None) -> None:
        """Fill the table of missing reports; it needs no others than those of some nodes."""
        if "missing" in question.known:
            return
        question.known |= {"missing"} if names is None else set()
        missing = _missing(question.connection, names, now=self.now(), schema="history")
        rows = [_row(report, number) for report, number, _ in missing]
        if rows:
            insert = f"INSERT OR IGNORE INTO temp.missing VALUES ({', '.join('?' * len(rows[0]))})"  # noqa: S608
            with question.writing():
                question.connection.executemany(insert, rows)

    def _nodes(self, select: tree.Select, question: QueryContext) -> Relation | None:
        names = allowed(select.where, "certname", lambda *_: None)
        find = f"SELECT 1 FROM temp.others WHERE {_among('certname', names)} LIMIT 1"  # noqa: S608
        others = question.connection.execute(find, _values(names)).fetchone()
        columns = [
            f'iif(day IS NULL, NULL, {sql}) AS "{name}"'
            for name, sql in _OF_NODE.items()
            if name in columns_of(select)
        ]
        if not columns and not others:
            return None
        self._fill(question, names)
        return Relation(
            sql=f"(SELECT {', '.join(['*', *columns])}"  # noqa: S608
            f" FROM ({_WITH_NEWEST.format(_EVERY if others else _LIVE)})"
            f"{' WHERE coalesce(facts_environment, day) IS NOT NULL' if others else ''})",
            natural=("r.certname",),
        )

    def find(self, hash_: str) -> FoundReport | None:
        """Return a report, with the resources of its run; `None` for an unknown hash."""
        parsed = parse_hash(hash_)
        if parsed is None:
            return None
        run, digits = parsed
        with self.snapshot() as connection:
            names = connection.execute(
                "SELECT text FROM latest JOIN texts ON id = node UNION SELECT node FROM nodes"
            )
            node = next((name for (name,) in names if node_digits(name) == digits), "")
            found, row = run_queries.of_id(connection, run, node), of_name(connection, node)
            online = row is None or row.state != UNRESPONSIVE
            if found is not None:
                return FoundReport(run=found, is_missing=False, is_online=online)
            for report, _, other in _missing(connection, [node], now=self.now(), schema="main"):
                if report.run == run:
                    missing = other.run != run
                    return FoundReport(run=report, is_missing=missing, is_online=online)
        return None


def _among(column: str, names: Collection[Json] | None) -> str:
    """Return the condition that a column is among names, for `_values`; `None` for any."""
    return "1" if names is None else f"{column} IN (SELECT value FROM json_each(:names))"  # noqa: S608


def _values(names: Collection[Json] | None) -> dict[str, str]:
    return {"names": compact([*(names or ())])}


def _missing(
    connection: Connection, names: Collection[Json] | None, *, now: float, schema: str
) -> Iterator[tuple[RunRow, int, NodeRow]]:
    """Yield the reports that nodes should have sent, with the numbers of the nodes and their rows.

    A node without a run has a negative number.
    """
    find = _MAY_MISS.format(schema, _among("n.node", names))
    for text, number, ended, outcome in connection.execute(find, {"now": now, **_values(names)}):
        row = of_text(text)
        report = report_rows.missing_report(row, ended, outcome, now=now)
        if report is not None:
            yield report, number, row


def _runs(*, latest: bool = False, asks: bool = False) -> str:
    """Return a SELECT of runs, or of only the newest run of each node if none is missing.

    `asks` is whether the column `newest` is used.
    """
    if latest:
        return _RUNS.format(key=_LATEST_KEY, newest="1", runs=_LATEST, some=f"NOT {_IS_MISSING}")
    newest = f"{_IS_NEWEST} AND NOT {_IS_MISSING}" if asks else "0"
    return _RUNS.format(key=_KEY, newest=newest, runs="history.runs", some="1")


def _listed(columns: Mapping[str, str]) -> str:
    return ", ".join(f'{sql} AS "{name}"' for name, sql in columns.items())


def _row(report: RunRow, node: int) -> tuple[str | int | None, ...]:
    """Return a row of `temp.missing`."""
    day, moment = run_table.filed(RunId(report.run), report.finished_at)
    at = round(report.finished_at * run_table.MILLI) - day * round(DAY) * run_table.MILLI
    run = (report.node, day, node, moment, at, str(report.outcome), report.release)
    return *run, "", "", 0, 0, report.seconds, report.reason, report.cause, None, 1


@lru_cache(maxsize=32_768)
def _hash(node: str, day: int, moment: int) -> str:
    return hash_of(node, day * run_table.MOMENTS + moment)


def _hash_part(place: int) -> Callable[[str], int | None]:
    def part(text: str) -> int | None:
        parsed = parse_hash(text)
        return None if parsed is None else run_table.parts_of(parsed[0])[place]

    return part


@lru_cache(maxsize=10_000)
def _declared(text: str) -> str:
    resource = run_queries.resource_of(text, 0)
    return compact(
        {
            "type": resource.type,
            "title": report_rows.shown_title(resource.title, resource.place),
            "file": resource.file or None,
            "line": resource.line,
            "class": resource.containing_class or None,
        }
    )


def _metrics(seconds: int | None, counts: str | None) -> str:
    known = None if counts is None else run_queries.counts_of(counts)
    return compact(report_rows.metrics(seconds, known))


def _log(
    at: int,
    outcome: str,
    release: str,
    reason: str,
    cause: str,
    seconds: int | None,
    resources: str,
) -> str:
    run = RunRow(
        node="",
        run="",
        finished_at=at / run_table.MILLI,
        outcome=Kind(outcome),
        release=release,
        reason=reason,
        cause=cause,
        seconds=seconds,
        resources=tuple(
            run_queries.resource_of(text, number)
            for text, number in loads_again(resources.encode())
        ),
    )
    return compact([*report_rows.log_of(run)])


_FUNCTIONS: tuple[tuple[str, int, Callable[..., str | int | None]], ...] = (
    ("report_hash", 3, _hash),
    ("node_digits", 1, node_digits),
    ("report_uuid", 3, lambda *key: str(UUID(_hash(*key)[:32]))),
    ("hash_day", 1, _hash_part(0)),
    ("hash_moment", 1, _hash_part(1)),
    ("declared", 1, _declared),
    ("metrics_of", 2, _metrics),
    ("log_of", 7, _log),
)
