"""Rows of reports, events and nodes: SQL selects, sorts and counts as a plain filter does."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from localpuppet.base.formats.times import parse_time, show_epoch
from localpuppet.base.formats.values import Json
from localpuppet.fleet.history.day import DAY
from localpuppet.fleet.inventory.query.client_query import parse_client_query
from localpuppet.fleet.inventory.query.columns import COLUMNS, LATEST, OF_REPORTS
from localpuppet.fleet.inventory.query.evaluating import Evaluation
from localpuppet.fleet.inventory.query.records import RecordHint, RecordRows
from localpuppet.fleet.inventory.query.tree import Entity, Field, SortOrder
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.node.puppet.resources import ResourceResult
from localpuppet.web.dashboard.run_results import RunResource, RunResult
from tests.doubles.inventory import MemoryInventory
from tests.doubles.records import MemoryRecords
from tests.fleet.inventory.query.fleet import entry
from tests.web.puppetdb.reports.played_runs import MINUTE, NOW, PlayedRuns, node, run

ALL = frozenset(COLUMNS[Entity.REPORTS]) | {LATEST}
END, LONG_AGO = "end_time", NOW - 5 * DAY
NODES = [
    node("a"),
    node("b", state="unresponsive", received_at=NOW - 2 * DAY),
    node("c", run_interval=1800.0, finished_at=NOW - DAY),
    node("d", outcome=Kind.REFUSED, finished_at=NOW - 30.5, reason="on hold"),
]
RESOURCES = tuple(
    RunResource(resource=f"File[/{result}]", result=result, drift=drift, file="a.pp", line=line)
    for result, drift, line in (
        (ResourceResult.FAILED, False, 3),
        (ResourceResult.CHANGED, True, None),
        (ResourceResult.WOULD_CHANGE, False, 5),
        (ResourceResult.SKIPPED, False, 7),
    )
)
runs = st.builds(
    run,
    st.sampled_from("abcx"),
    # Whole milliseconds, and some at the very edge of a day.
    st.one_of(
        st.integers(0, 40 * 24).map(lambda hours: LONG_AGO + hours * 450.0 + 0.123),
        st.integers(0, 5).map(lambda days: float(LONG_AGO // DAY * DAY + days * DAY)),
    ),
    st.sampled_from([one for one in Kind if one is not Kind.NONE]),
    environment=st.sampled_from(["production", "test"]),
    noop=st.booleans(),
    resources=st.lists(st.sampled_from(RESOURCES), max_size=3, unique=True).map(tuple),
    # A refusal that began days before.
    seconds=st.sampled_from([20, 5, 2 * 86400 + 7]),
)
times = st.one_of(
    st.none(),
    st.integers(-2, 6 * 24).map(lambda hours: round((LONG_AGO + hours * 3600) * 1000)),
    st.integers(0, 6).map(lambda days: round((LONG_AGO // DAY + days) * DAY * 1000)),
)
equals = st.fixed_dictionaries(
    {},
    optional={
        "certname": st.lists(st.sampled_from("abcdxz"), min_size=1, max_size=2),
        "status": st.lists(st.sampled_from(["failed", "changed", "unchanged", "success", 1])),
        "environment": st.just(["test"]),
        "noop": st.sampled_from([[True], [False], [1]]),
        LATEST: st.sampled_from([[True], [False]]),
    },
)


def placed(many: Sequence[RunResult]) -> list[RunResult]:
    """Return runs without those of the same node and id; a long run has the id of its begin."""
    found: dict[tuple[str, str], RunResult] = {}
    for one in many:
        begun = run(one.node, one.at - (one.seconds or 0)).run
        found.setdefault((one.node, begun), RunResult(**{**fields(one), "run": begun}))
    return list(found.values())


def fields(one: RunResult) -> dict[str, Any]:
    return {name: getattr(one, name) for name in RunResult.__slots__}


def milliseconds(row: Mapping[str, Json], column: str) -> int:
    return round(parse_time(str(row[column])).timestamp() * 1000)


def holds(row: Mapping[str, Json], hint: RecordHint) -> bool:
    return (
        all(
            any(type(one) is type(row[name]) and one == row[name] for one in values)
            for name, values in hint.equal.items()
        )
        and all(milliseconds(row, name) >= time for name, time in hint.since.items())
        and all(milliseconds(row, name) <= time for name, time in hint.until.items())
    )


def numbers(rows: Iterable[Mapping[str, Json]], by: Sequence[str]) -> Counter[tuple[Json, ...]]:
    """Return the numbers of rows by their columns, from groups with a count."""
    found: Counter[tuple[Json, ...]] = Counter()
    for row in rows:
        count = row["count"]
        assert isinstance(count, int)
        found[tuple(row[name] for name in by)] += count
    return found


def text(row: Mapping[str, Json]) -> str:
    return repr(sorted(row.items()))


@settings(max_examples=150, deadline=None)
@given(st.lists(runs, max_size=25), equals, times, times, st.data())
def test_sql_selects_what_a_plain_filter_selects(
    many: list[RunResult],
    equal: dict[str, list[Json]],
    since: int | None,
    until: int | None,
    data: st.DataObject,
) -> None:
    played = PlayedRuns(placed(many), NODES)
    entity = data.draw(st.sampled_from([Entity.REPORTS, Entity.EVENTS]))
    column = data.draw(
        st.sampled_from([END, "start_time"] if entity is Entity.REPORTS else ["timestamp"])
    )
    if entity is Entity.EVENTS:
        equal = {name: values for name, values in equal.items() if name != "noop"}
    everything = [*played.records.rows(entity, RecordHint(columns=ALL)).rows]
    hint = RecordHint(
        equal=equal,
        since={} if since is None else {column: since},
        until={} if until is None else {column: until},
        exact=True,
        columns=ALL,
    )
    answer = played.records.rows(entity, hint)
    found = sorted(text(row) for row in answer.rows if holds(row, hint))
    assert found == sorted(text(row) for row in everything if holds(row, hint))


@settings(max_examples=150, deadline=None)
@given(st.lists(runs, max_size=25), equals, times, times, st.data())
def test_sql_sorts_limits_and_counts_as_a_plain_filter(
    many: list[RunResult],
    equal: dict[str, list[Json]],
    since: int | None,
    until: int | None,
    data: st.DataObject,
) -> None:
    equal.pop(LATEST, None)
    played = PlayedRuns(placed(many), NODES)
    descending = data.draw(st.booleans())
    offset, limit = data.draw(st.integers(0, 12)), data.draw(st.integers(0, 9))
    hint = RecordHint(
        equal=equal,
        since={} if since is None else {END: since},
        until={} if until is None else {"producer_timestamp": until},
        exact=True,
        columns=ALL,
        order=(SortOrder(field=Field(column=END), descending=descending),),
        limit=limit,
        offset=offset,
        total=True,
    )
    everything = played.records.rows(Entity.REPORTS, RecordHint(columns=ALL)).rows
    wanted = [row for row in everything if holds(row, hint)]
    ends = sorted((str(row[END]) for row in wanted), reverse=descending)
    page = played.records.rows(Entity.REPORTS, hint)
    rows = list(page.rows)
    assert page.cut
    assert page.ordered
    assert page.total == len(wanted)
    assert [row[END] for row in rows] == ends[offset : offset + limit]
    assert {text(row) for row in rows} <= {text(row) for row in wanted}
    by = ("status", "noop")
    counted = played.records.rows(
        Entity.REPORTS,
        RecordHint(equal=equal, since=hint.since, until=hint.until, exact=True, count_by=by),
    )
    assert counted.counted
    assert numbers(counted.rows, by) == Counter(tuple(row[name] for name in by) for row in wanted)


@settings(max_examples=60, deadline=None)
@given(st.lists(runs, max_size=25))
def test_events_of_the_newest_reports_are_counted_by_node_and_status(
    many: list[RunResult],
) -> None:
    played = PlayedRuns(placed(many), NODES)
    by = ("certname", "status")
    hint = RecordHint(equal={LATEST: [True]}, exact=True)
    plain = Counter(
        tuple(row[name] for name in by) for row in played.records.rows(Entity.EVENTS, hint).rows
    )
    counted = played.records.rows(
        Entity.EVENTS, RecordHint(equal={LATEST: [True]}, exact=True, count_by=by)
    )
    assert counted.counted
    assert numbers(counted.rows, by) == plain


profile_conditions = st.recursive(
    st.one_of(
        st.tuples(
            st.just("="),
            st.sampled_from(["status", "environment", "code_id"]),
            st.sampled_from(["failed", "changed", "unchanged", "test", "c" * 40]),
        ),
        st.tuples(
            st.just("="),
            st.sampled_from(["noop", "noop_pending"]),
            st.sampled_from([True, False, 1]),
        ),
        st.just(("~", "environment", "e")),
        st.just(("null?", "puppet_version", True)),
        st.just(("=", "report_format", 12.0)),
    ),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["and", "or"]), inner, inner), st.tuples(st.just("not"), inner)
    ),
    max_leaves=5,
)
other_conditions = st.one_of(
    st.tuples(st.just("="), st.just("certname"), st.sampled_from("abx")),
    st.tuples(st.just("~"), st.just("certname"), st.sampled_from(["a", "[bx]"])),
    st.tuples(
        st.sampled_from(["<", "<=", ">", ">="]),
        st.sampled_from(["end_time", "start_time"]),
        st.integers(-1, 6).map(lambda days: show_epoch(LONG_AGO // DAY * DAY + days * DAY)),
    ),
)


class AllRows:
    """A source that applies no hint.

    Args:
        rows: The rows.
    """

    def __init__(self, rows: Sequence[Mapping[str, Json]]) -> None:
        self._rows = rows
        self.entities = (Entity.REPORTS,)

    def rows(self, entity: Entity, hint: RecordHint) -> RecordRows:
        """Return all rows."""
        assert entity is Entity.REPORTS
        assert hint.limit is None or hint.limit >= 0
        return RecordRows(rows=self._rows)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(runs, max_size=25),
    st.lists(st.one_of(profile_conditions, other_conditions), max_size=3),
    st.integers(0, 9),
    st.booleans(),
)
def test_any_query_has_the_answer_that_it_has_without_hints(
    many: list[RunResult], conditions: list[Json], limit: int, counts: bool
) -> None:
    played = PlayedRuns(placed(many), NODES)
    everything = [*played.records.rows(Entity.REPORTS, RecordHint(columns=ALL)).rows]
    where: list[Json] = json.loads(json.dumps(["and", ["~", "hash", ""], *conditions][:9]))
    if conditions:
        where.pop(1)
    query: list[Json] = ["from", "reports", where, ["order_by", [["end_time", "desc"]]]]
    query.append(["limit", limit])
    if counts:
        fields_: list[Json] = [["function", "count"], "status"]
        query = ["from", "reports", ["extract", fields_, where, ["group_by", "status"]]]
    select = parse_client_query({"query": query}).select
    reader = MemoryInventory([])
    answers = []
    for records in (played.records, AllRows(everything)):
        found = Evaluation(reader, records=records).stream(select, total=not counts)
        rows = [json.loads(text) for text in found.rows]
        shown = sorted(rows, key=repr) if counts else [row["end_time"] for row in rows]
        answers.append((shown, found.total))
    assert answers[0] == answers[1]


def test_pages_in_order_of_time_meet_every_report_once() -> None:
    # Many runs end in the same millisecond.
    played = PlayedRuns(run(f"n{number}", NOW - number // 7 * 40_000) for number in range(60))
    hashes = []
    for offset in range(0, 60, 7):
        hint = RecordHint(exact=True, limit=7, offset=offset, columns=ALL)
        hashes += [row["hash"] for row in played.records.rows(Entity.REPORTS, hint).rows]
    assert len(hashes) == len({*hashes}) == 60


def test_a_report_is_found_by_its_hash_and_has_every_column() -> None:
    played = PlayedRuns(
        [run("a", NOW - MINUTE, Kind.CHANGED, resources=RESOURCES[:2]), run("a", NOW)],
        [node("a")],
    )
    (changed,) = played.records.rows(
        Entity.REPORTS, RecordHint(equal={"status": ["changed"]}, exact=True, columns=ALL)
    ).rows
    (found,) = played.records.rows(
        Entity.REPORTS, RecordHint(equal={"hash": [changed["hash"]]}, columns=ALL)
    ).rows
    assert found == changed
    assert found.keys() == ALL
    assert found[LATEST] is False
    assert len(str(found["hash"])) == 40
    events = played.records.rows(
        Entity.EVENTS, RecordHint(equal={"report": [changed["hash"]]}, exact=True)
    ).rows
    assert [(row["status"], row["file"], row["line"]) for row in events] == [
        ("failure", "a.pp", 3),
        ("success", "a.pp", None),
    ]
    for wrong in ("", "0" * 40, "g" * 40, "f" * 40, 7):
        hint = RecordHint(equal={"hash": [wrong]}, exact=True)
        assert not [*played.records.rows(Entity.REPORTS, hint).rows]


def test_an_event_has_every_column_and_no_values() -> None:
    played = PlayedRuns([run("a", NOW, Kind.CHANGED, resources=RESOURCES[1:2])])
    (event,) = played.records.rows(Entity.EVENTS, RecordHint()).rows
    assert event.keys() == {*COLUMNS[Entity.EVENTS]}
    assert event["resource_type"] == "File"
    assert event["resource_title"] == "/changed"
    assert event["corrective_change"] is True
    assert [event[name] for name in ("property", "old_value", "new_value", "message")] == [None] * 4


def test_the_newest_report_decides_the_columns_of_a_node() -> None:
    played = PlayedRuns(
        [
            run("a", NOW - MINUTE, Kind.FAILED),
            run("a", NOW, Kind.CORRECTED, environment="test"),
            run("forgotten", NOW, Kind.FAILED),
        ],
        [node("a"), node("new")],
    )
    (row,) = played.records.rows(Entity.NODES, RecordHint()).rows
    (report,) = played.records.rows(
        Entity.REPORTS,
        RecordHint(equal={LATEST: [True], "certname": ["a"]}, exact=True, columns=ALL),
    ).rows
    assert row.keys() == {"certname", *OF_REPORTS}
    assert row["latest_report_hash"] == report["hash"]
    assert row["report_timestamp"] == report[END]
    assert row["report_environment"] == "test"
    assert row["latest_report_status"] == "changed"
    assert row["latest_report_corrective_change"] is True


@settings(max_examples=60, deadline=None)
@given(
    st.lists(runs, max_size=12),
    st.lists(
        st.one_of(
            st.tuples(
                st.just("="),
                st.just("latest_report_status"),
                st.sampled_from(["failed", "changed"]),
            ),
            st.tuples(st.just("="), st.just("latest_report_noop"), st.sampled_from([True, 1, "x"])),
            st.tuples(st.just("="), st.just("certname"), st.sampled_from("abx")),
            st.tuples(st.just("null?"), st.just("latest_report_hash"), st.booleans()),
        ),
        min_size=1,
        max_size=3,
    ),
    st.booleans(),
)
def test_nodes_with_a_report_of_some_kind_are_those_of_all_nodes(
    many: list[RunResult], conditions: list[Json], is_either: bool
) -> None:
    """Only the entries of nodes with such a report are read; the answer is the same."""
    played = PlayedRuns(placed(many), NODES)
    where: Json = json.loads(json.dumps(["or" if is_either else "and", *conditions]))
    select = parse_client_query({"query": ["from", "nodes", where]}).select
    listed = [entry(name) for name in "abcx"]
    every = [*played.records.rows(Entity.NODES, RecordHint()).rows]
    plain = MemoryRecords({Entity.NODES: every})
    found = Evaluation(MemoryInventory(listed), records=played.records).stream(select)
    expected = Evaluation(MemoryInventory(listed), records=plain).stream(select)
    assert [*found.rows] == [*expected.rows]
