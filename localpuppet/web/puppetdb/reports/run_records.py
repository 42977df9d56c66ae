"""Reports, events and the report columns of nodes as rows of queries; a `RecordSource`."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, field
from threading import Lock

from localpuppet.base.formats.times import show_epoch
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.sqlite import Connection
from localpuppet.fleet.inventory.node_row import NodeRow
from localpuppet.fleet.inventory.query.columns import LATEST
from localpuppet.fleet.inventory.query.records import RecordHint, RecordRows
from localpuppet.fleet.inventory.query.tree import Entity
from localpuppet.web.dashboard.run_results import RunResult
from localpuppet.web.dashboard.tables import report_queries
from localpuppet.web.dashboard.tables.report_queries import LatestRun
from localpuppet.web.dashboard.tables.run_table import MILLI
from localpuppet.web.puppetdb.reports.missing_reports import LastReport, may_miss, missing_report
from localpuppet.web.puppetdb.reports.report_hash import (
    hash_of,
    node_digits,
    parse_hash,
    report_hash,
)
from localpuppet.web.puppetdb.reports.report_plan import (
    ReportPlan,
    ReportState,
    hashes_in,
    names_in,
)
from localpuppet.web.puppetdb.reports.report_rows import FAILED, Row, node_columns, profile_row

# The limit of nodes whose newest runs are read for one query.
MAX_NAMED = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundReport:
    """A report.

    Attributes:
        run: Its run.
        is_missing: Whether it is one that the node should have sent.
    """

    run: RunResult
    is_missing: bool


@dataclass(frozen=True, slots=True)
class _NewestRuns:
    """The newest runs of nodes.

    Attributes:
        change: The number of the memory's state; `None` if they are not of all nodes.
        runs: The runs by node.
        rows: The columns of `nodes` by node, of those that a query needed.
    """

    change: int | None = None
    runs: Mapping[str, LatestRun] = field(default_factory=dict)
    rows: dict[str, Row] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class RunRecords:
    """The rows.

    Attributes:
        snapshot: Lends a connection to the memory that sees no later write.
        nodes: Returns the current rows of nodes; called in any thread.
        now: Seconds since 1970, UTC.
        forgotten: Returns the nodes that were forgotten, also those that came back; called in any
            thread.
    """

    snapshot: Callable[[], AbstractContextManager[Connection]]
    _: KW_ONLY
    nodes: Callable[[], Collection[NodeRow]]
    now: Callable[[], float]
    forgotten: Callable[[], Collection[str]] = frozenset
    entities: Collection[Entity] = (Entity.REPORTS, Entity.EVENTS, Entity.NODES)
    _newest: _NewestRuns = field(default_factory=lambda: _NewestRuns(), init=False)
    _lock: Lock = field(default_factory=Lock, init=False)
    _nodes_by_digits: dict[str, str] = field(default_factory=dict, init=False)

    def rows(self, entity: Entity, hint: RecordHint) -> RecordRows:
        """Return rows of an entity; see `RecordSource`."""
        if entity is Entity.NODES:
            return RecordRows(rows=self._nodes(hint))
        with self.snapshot() as connection:
            plan = ReportPlan(entity, hint, self._state(connection, hint))
            return plan.answer() or RecordRows(rows=self._streamed(entity, hint))

    def find(self, hash_: str) -> FoundReport | None:
        """Return a report, with the resources of its run; `None` for an unknown hash."""
        hint = RecordHint(equal={"hash": [hash_]})
        with self.snapshot() as connection:
            state = self._state(connection, hint)
            run = next(ReportPlan(Entity.REPORTS, hint, state).named(), None)
        if run is None:
            return None
        recorded = run.run in {row.run for row in self.nodes() if row.node == run.node}
        is_missing = state.missing.get(run.node) == run and not recorded
        return FoundReport(run=run, is_missing=is_missing)

    def _streamed(self, entity: Entity, hint: RecordHint) -> Iterator[Row]:
        with self.snapshot() as connection:
            yield from ReportPlan(entity, hint, self._state(connection, hint)).rows()

    def _nodes(self, hint: RecordHint) -> Iterator[Row]:
        with self.snapshot() as connection:
            state = self._state(connection, hint, latest=True)
        wanted = [
            (column, {_scalar(value) for value in values if not isinstance(value, list | dict)})
            for column, values in hint.equal.items()
            if column != "certname"  # the state has no others
        ]
        names = names_in(hint)
        known = {row.node for row in self.nodes() if names is None or row.node in names}
        listed = [self._row(state, node) for node in sorted(known)]
        rows = [row for row in listed if row is not None]
        for column, some in wanted:
            rows = [row for row in rows if _scalar(row[column]) in some]
        yield from rows

    def _row(self, state: ReportState, node: str) -> Row | None:
        """Return the columns of a node's newest report; `None` without one."""
        if node not in state.missing:
            row = state.rows.get(node)
            if row is None and node in state.latest:
                row = state.rows[node] = _latest_row(state.latest[node], state.profiles)
            return row
        missing = state.missing[node]
        hash_, end = report_hash(node, missing.run), show_epoch(missing.at)
        return {"certname": node, **node_columns(profile_row(missing), hash_, end)}

    def _names(self, connection: Connection, hint: RecordHint) -> frozenset[str] | None:
        """Return the nodes that a query names, also by the hashes of reports; `None` for all."""
        names, hashes = names_in(hint), hashes_in(hint)
        if hashes is None:
            return names
        digits = {parsed[1] for parsed in map(parse_hash, hashes) if parsed is not None}
        if not digits <= self._nodes_by_digits.keys():
            known = {*report_queries.nodes(connection), *(row.node for row in self.nodes())}
            self._nodes_by_digits = {node_digits(node): node for node in known}
        named = frozenset(self._nodes_by_digits.get(digit, "") for digit in digits)
        return named if names is None else named & names

    def _latest(self, connection: Connection, names: Collection[str] | None) -> _NewestRuns:
        """Return the newest runs of at least some nodes; those of all are read once per change."""
        if names is not None and len(names) <= MAX_NAMED:
            return _NewestRuns(runs=_by_node(report_queries.latest(connection, names)))
        change = report_queries.change(connection)
        with self._lock:
            known = self._newest
            if known.change != change:
                runs = _by_node(report_queries.latest(connection))
                rows = {
                    node: row
                    for node, row in known.rows.items()
                    if runs.get(node) == known.runs[node]
                }
                self._newest = known = _NewestRuns(change, runs, rows)
            return known

    def _state(
        self, connection: Connection, hint: RecordHint, *, latest: bool = False
    ) -> ReportState:
        """Return what a query needs, with the newest runs of all its nodes if it uses them."""
        names, now = self._names(connection, hint), self.now()
        rows = [
            row
            for row in self.nodes()
            if (names is None or row.node in names) and may_miss(row, now)
        ]
        needed = names
        if not latest and LATEST not in hint.columns | hint.equal.keys():
            needed = frozenset(row.node for row in rows)
        newest = self._latest(connection, needed)
        runs = newest.runs
        profiles = {
            number: profile_row(run) for number, run in report_queries.profiles(connection).items()
        }
        missing = {}
        for row in rows:
            item = runs.get(row.node)
            failed = item is not None and profiles[item.profile]["status"] == FAILED
            last = None if item is None else LastReport(ended=item.ended, failed=failed)
            report = missing_report(row, last, now=now)
            if report is not None:
                missing[row.node] = report
        return ReportState(
            connection=connection,
            profiles=profiles,
            latest=runs,
            rows=newest.rows,
            missing=missing,
            forgotten=frozenset(self.forgotten()) - {row.node for row in self.nodes()},
            nodes_by_digits=self._nodes_by_digits,
        )


def _by_node(runs: Iterable[LatestRun]) -> Mapping[str, LatestRun]:
    return {run.node: run for run in runs}


def _latest_row(latest: LatestRun, profiles: Mapping[int, Row]) -> Row:
    hash_ = hash_of(latest.node, latest.day, latest.moment)
    end = show_epoch(latest.ended / MILLI)
    return {"certname": latest.node, **node_columns(profiles[latest.profile], hash_, end)}


def _scalar(value: Json) -> tuple[bool, Json]:
    """Return what equal values of a column share: a boolean equals no number."""
    return isinstance(value, bool), value
