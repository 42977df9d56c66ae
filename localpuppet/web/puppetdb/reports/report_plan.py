"""How a query of reports or events is answered from the dashboard's memory.

- SQL selects by node, hash, time, the columns of a profile and `latest_report?`. If these are the
  whole condition, it also sorts by the end of the run, limits and counts.
- Reports that nodes should have sent (`missing_reports`) are among the rows, and count.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import RunId
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.sqlite import Connection
from localpuppet.fleet.inventory.query.columns import LATEST, NODE_STATE
from localpuppet.fleet.inventory.query.records import RecordHint, RecordRows, RowCondition
from localpuppet.fleet.inventory.query.tree import Entity
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.node.puppet.resources import ResourceResult
from localpuppet.web.dashboard.run_results import RunResource, RunResult
from localpuppet.web.dashboard.tables import report_queries
from localpuppet.web.dashboard.tables.dated import parts_of
from localpuppet.web.dashboard.tables.report_queries import LatestRun, ReportFilter
from localpuppet.web.dashboard.tables.run_table import MILLI
from localpuppet.web.puppetdb.reports.report_hash import parse_hash
from localpuppet.web.puppetdb.reports.report_rows import (
    EVENT_STATUS,
    Row,
    event_row,
    profile_row,
    report_row,
)

# The limit of rows in a page that is held in memory; the rows of a larger one are read one by one.
MAX_PAGE = 5_000
# The limit of the end of a sorted page: the keys of all rows before it are in memory.
MAX_DEPTH = 100_000
# Columns with the end of a run, and columns with its beginning.
_ENDS = frozenset(
    (
        *("end_time", "producer_timestamp", "receive_time"),
        *("timestamp", "run_end_time", "report_receive_time"),
    )
)
_STARTS = frozenset(("start_time", "run_start_time"))
_PROFILE = frozenset(
    profile_row(RunResult(node="", run="", at=0, outcome=Kind.NONE, release="", reason=""))
)
# The columns of a profile that events have, too; `status` and `corrective_change` are their own.
_OF_EVENTS = frozenset(("environment", "configuration_version"))
_COUNTED_EVENTS = frozenset(("certname", "status", "corrective_change"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportState:
    """What a query needs beside the runs.

    Attributes:
        connection: The memory, as it is for this query.
        profiles: The columns of reports by profile.
        latest: The newest run by node, of the nodes that the query names; of some if it does not
            use them.
        rows: The columns of `nodes` of these runs by node, filled on demand.
        missing: The reports that these nodes should have sent.
        forgotten: Nodes whose reports are left out, unless the query asks for inactive nodes.
        nodes_by_digits: The nodes by their digits in hashes, of the hashes in the query.
    """

    connection: Connection
    profiles: Mapping[int, Row]
    latest: Mapping[str, LatestRun]
    rows: dict[str, Row]
    missing: Mapping[str, RunResult]
    forgotten: frozenset[str]
    nodes_by_digits: Mapping[str, str]

    def is_latest(self, run: RunResult) -> bool:
        """Whether a run is its node's newest report."""
        if run.node in self.missing:
            return self.missing[run.node] == run
        known = self.latest.get(run.node)
        return known is not None and (known.day, known.moment) == parts_of(RunId(run.run))


class ReportPlan:
    """The answer to a query.

    Args:
        entity: Reports or events.
        hint: The hint.
        state: What the query needs beside the runs.
    """

    def __init__(self, entity: Entity, hint: RecordHint, state: ReportState) -> None:
        self._of_reports = entity is Entity.REPORTS
        self._hint = hint
        self._state = state
        self._hashes = hashes_in(hint)
        states = hint.equal.get(NODE_STATE, ("active",))
        self._without = frozenset() if "inactive" in states else state.forgotten
        self._only = None if "active" in states else state.forgotten
        self._is_latest = [*hint.equal.get(LATEST, ())] == [True]
        self._profile = _PROFILE if self._of_reports else _OF_EVENTS
        self._filter = self._filtered()

    def answer(self) -> RecordRows | None:
        """Return what SQL can sort, limit or count; `None` if it cannot."""
        hint = self._hint
        applied = {*self._profile, "certname", NODE_STATE}
        applied |= {LATEST} if self._is_latest else set()
        if not self._of_reports:
            applied.add("status")
        times = hint.since.keys() | hint.until.keys()
        if not all(self._is_shared(item) for item in hint.further):
            return None
        if not hint.exact or not hint.equal.keys() <= applied or not times <= _ENDS:
            return None
        if hint.count_by is not None:
            counted = self._counted(hint.count_by)
            return None if counted is None else RecordRows(rows=counted, counted=True)
        sortable = len(hint.order) <= 1 and all(
            criterion.field.column in _ENDS for criterion in hint.order
        )
        if hint.limit is None or not sortable or not self._of_reports or self._is_latest:
            return None
        if hint.limit > MAX_PAGE or (hint.offset + hint.limit > MAX_DEPTH and not hint.order):
            return None
        return self._page(
            hint.limit, descending=all(criterion.descending for criterion in hint.order)
        )

    def rows(self) -> Iterator[Row]:
        """Yield the rows that the answer can have."""
        connection, missing = self._state.connection, self._state.missing
        if self._of_reports:
            runs: Iterable[RunResult] = self.named()
            if self._hashes is None:
                runs = chain(self._missing(), report_queries.runs(connection, self._filter))
            yield from self._reports(runs)
            return
        events: Iterable[tuple[RunResult, RunResource]] = (
            (run, item) for run in self.named() for item in run.resources
        )
        if self._hashes is None:
            events = report_queries.events(connection, self._filter, self._results())
        for run, resource in events:
            if self._is_wanted(run) and (not self._is_latest or run.node not in missing):
                yield self._marked(event_row(run, resource), run)

    def named(self) -> Iterator[RunResult]:
        """Yield the runs of the reports that the query names by their hashes."""
        state = self._state
        parsed = [item for item in map(parse_hash, self._hashes or ()) if item is not None]
        for run, digits in parsed:
            node = state.nodes_by_digits.get(digits, "")
            if node in state.missing and state.missing[node].run == run:
                yield state.missing[node]
            else:
                yield from report_queries.of_runs(state.connection, [(node, run)])

    def _counted(self, by: tuple[str, ...]) -> list[Row] | None:
        state = self._state
        rows: Iterable[tuple[Mapping[str, Json], int]]
        if not self._of_reports:
            if not self._is_latest or not _COUNTED_EVENTS.issuperset(by):
                return None
            counts = report_queries.latest_events(state.connection, self._filter, self._results())
            rows = (
                (
                    {
                        "certname": node,
                        "status": EVENT_STATUS[result],
                        "corrective_change": drift,
                    },
                    number,
                )
                for node, result, drift, number in counts
                if node not in state.missing
            )
        elif self._is_latest or not self._profile.issuperset(by):
            return None
        else:
            numbers = report_queries.counts(state.connection, self._filter)
            rows = chain(
                ((state.profiles[profile], number) for profile, number in numbers.items()),
                ((profile_row(run), 1) for run in self._missing()),
            )
        return [{**{name: row[name] for name in by}, "count": number} for row, number in rows]

    def _page(self, limit: int, *, descending: bool) -> RecordRows:
        hint, connection = self._hint, self._state.connection
        most = hint.offset + limit
        if most > MAX_DEPTH:
            raise InvalidInputError(
                f"a page of sorted reports ends behind the first {MAX_DEPTH}",
                hint="select fewer reports by end_time, or reverse the order",
            )
        missing = list(self._missing())
        skip = max(0, hint.offset - len(missing))  # these come before the page in any case
        runs = report_queries.by_end(
            connection, self._filter, descending=descending, most=most, skip=skip
        )
        runs = sorted([*runs, *missing], key=_end, reverse=descending)
        runs = runs[hint.offset - skip : most - skip]
        total = None
        if hint.total:
            total = report_queries.counts(connection, self._filter).total() + len(missing)
        rows = list(self._reports(runs))
        return RecordRows(rows=rows, ordered=True, cut=True, total=total)

    def _reports(self, runs: Iterable[RunResult]) -> Iterator[Row]:
        if not {"resource_events", "logs"}.isdisjoint(self._hint.columns):
            runs = report_queries.with_resources(self._state.connection, runs)
        for run in runs:
            if self._is_wanted(run) and (not self._is_latest or self._state.is_latest(run)):
                yield self._marked(report_row(run), run)

    def _marked(self, row: Row, run: RunResult) -> Row:
        if LATEST in self._hint.columns or LATEST in self._hint.equal:
            row[LATEST] = self._state.is_latest(run)
        if NODE_STATE in self._hint.columns:
            row[NODE_STATE] = "inactive" if run.node in self._state.forgotten else "active"
        return row

    def _is_wanted(self, run: RunResult) -> bool:
        """Whether the query asks for nodes in the state of a run's node."""
        return run.node not in self._without and (self._only is None or run.node in self._only)

    def _missing(self) -> Iterator[RunResult]:
        """Yield the missing reports that the filter selects."""
        asked = self._filter
        for run in self._state.missing.values():
            ended = round(run.at * MILLI)
            early = asked.since is not None and ended < asked.since
            late = asked.until is not None and ended > asked.until
            if self._is_wanted(run) and not early and not late and self._has(profile_row(run)):
                yield run

    def _filtered(self) -> ReportFilter:
        hint, profiles, names = self._hint, None, names_in(self._hint)
        shared = any(self._is_shared(item) for item in hint.further)
        if shared or not self._profile.isdisjoint(hint.equal):
            profiles = [number for number, row in self._state.profiles.items() if self._has(row)]
        if self._only is not None:
            names = self._only if names is None else self._only & names
        since = [time for column, time in hint.since.items() if column in _ENDS | _STARTS]
        until = [time for column, time in hint.until.items() if column in _ENDS]
        return ReportFilter(
            since=max(since, default=None),
            until=min(until, default=None),
            nodes=names,
            without=self._without,
            profiles=profiles,
            latest=self._is_latest,
        )

    def _has(self, row: Mapping[str, Json]) -> bool:
        """Whether a profile has what the query wants of its columns."""
        equal, further = self._hint.equal, self._hint.further
        return all(
            _is_among(row[name], equal[name]) for name in self._profile & equal.keys()
        ) and all(item.holds(row) for item in further if self._is_shared(item))

    def _is_shared(self, condition: RowCondition) -> bool:
        """Whether a condition is about columns of a profile only."""
        return condition.columns <= self._profile

    def _results(self) -> list[ResourceResult] | None:
        wanted = self._hint.equal.get("status")
        if wanted is None:
            return None
        return [result for result, status in EVENT_STATUS.items() if status in wanted]


def names_in(hint: RecordHint) -> frozenset[str] | None:
    """Return the nodes that a query names; `None` for all."""
    names = hint.equal.get("certname")
    return None if names is None else frozenset(name for name in names if isinstance(name, str))


def hashes_in(hint: RecordHint) -> Collection[Json] | None:
    """Return the hashes of the reports that a query names; `None` for all."""
    return hint.equal.get("hash", hint.equal.get("report"))


def _is_among(value: Json, values: Collection[Json]) -> bool:
    # As in the evaluator: null equals nothing, and a boolean no number.
    return value is not None and any(
        value == item and isinstance(value, bool) == isinstance(item, bool) for item in values
    )


def _end(run: RunResult) -> float:
    return run.at
