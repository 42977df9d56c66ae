"""Reports, events and nodes in SQL: the same as a plain table, and found by the key of runs."""

import json
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localpuppet.base.formats.times import show_epoch
from localpuppet.base.formats.values import Json
from localpuppet.fleet.history.history_records import DAY
from localpuppet.fleet.inventory.presence import NodeRow
from localpuppet.fleet.inventory.query.evaluating import CHECKED_EVERY, Evaluation, QueryLimits
from localpuppet.fleet.inventory.query.pql import parse_client_query
from localpuppet.fleet.inventory.query.tree import COLUMNS, LATEST, Entity
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.node.puppet.resources import ResourceResult
from localpuppet.web.dashboard.run_table import RunRow
from tests.doubles.inventory import MemoryInventory
from tests.doubles.records import MemoryRecords
from tests.fleet.inventory.query.fleet import entry
from tests.fleet.make import a_part
from tests.rigs.quick import examples
from tests.web.puppetdb.served import MINUTE, NOW, PlayedRuns, node, run

END, LONG_AGO = "end_time", NOW - 5 * DAY


def late(name: str) -> NodeRow:
    """Return a node that should have run a day ago."""
    return node(name, run_interval=1800.0, finished_at=NOW - DAY)


NODES = [
    node("a"),
    node("b", state="unresponsive", received_at=NOW - 2 * DAY),
    late("c"),
    node("d", outcome=Kind.REFUSED, finished_at=NOW - 30.5, reason="on hold"),
]
RESOURCES = tuple(
    a_part(f"File[/{result}]", status=result, corrective_change=drift, file="a.pp", line=line)
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


def placed(many: Sequence[RunRow]) -> list[RunRow]:
    """Return runs without those of the same node and id; a long run has the id of its begin."""
    found: dict[tuple[str, str], RunRow] = {}
    for one in many:
        begun = run(one.node, one.finished_at - (one.seconds or 0)).run
        found.setdefault((one.node, begun), RunRow(**{**fields(one), "run": begun}))
    return list(found.values())


def fields(one: RunRow) -> dict[str, Any]:
    return {name: getattr(one, name) for name in RunRow.__value_fields__}


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
            st.sampled_from([True, False, "true"]),
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
    st.tuples(st.just("="), st.just("certname"), st.sampled_from("abdx")),
    st.tuples(st.just("in"), st.just("certname"), st.just(("array", ("a", "d", "z")))),
    st.just(("in", "certname", ("from", "reports", ("extract", "certname", ("=", "noop", True))))),
    st.tuples(st.just("="), st.just(LATEST), st.booleans()),
    st.tuples(st.just("~"), st.just("certname"), st.sampled_from(["a", "[bx]"])),
    st.tuples(
        st.sampled_from(["<", "<=", ">", ">=", "="]),
        st.sampled_from(["end_time", "start_time", "receive_time"]),
        st.one_of(
            st.integers(-1, 6).map(lambda days: show_epoch(LONG_AGO // DAY * DAY + days * DAY)),
            st.integers(0, 40 * 24).map(lambda hours: show_epoch(LONG_AGO + hours * 450.0 + 0.123)),
        ),
    ),
)
conditions_ = st.recursive(
    st.one_of(profile_conditions, other_conditions),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["and", "or"]), inner, inner), st.tuples(st.just("not"), inner)
    ),
    max_leaves=5,
)
event_conditions = st.one_of(
    other_conditions.filter(lambda one: one[1] not in ("end_time", "start_time", "receive_time")),
    st.tuples(st.just("="), st.just("status"), st.sampled_from(["failure", "noop", "changed"])),
    st.tuples(st.just("="), st.just("corrective_change"), st.booleans()),
    st.tuples(st.just("="), st.just("resource_title"), st.sampled_from(["/failed", "/x"])),
    st.tuples(st.just(">"), st.just("line"), st.integers(2, 7)),
    st.tuples(
        st.sampled_from(["<", ">="]),
        st.sampled_from(["timestamp", "run_start_time"]),
        st.integers(-1, 6).map(lambda days: show_epoch(LONG_AGO // DAY * DAY + days * DAY)),
    ),
)


def everything(played: PlayedRuns, entity: str) -> list[dict[str, Json]]:
    """Return all rows, with the columns that only conditions use."""
    key = "hash" if entity == "reports" else "report"
    newest = {
        row["hash"]
        for row in played.ask(["from", "reports", ["extract", "hash", ["=", LATEST, True]]])
    }
    return [{**row, LATEST: row[key] in newest} for row in played.ask(["from", entity])]


@examples(80)
@given(
    st.lists(runs, max_size=25),
    st.lists(conditions_, max_size=3),
    st.integers(0, 9),
    st.integers(0, 12),
    st.sampled_from(["rows", "counts", "asc", "desc"]),
)
def test_sql_answers_as_a_plain_table_of_all_reports(
    many: list[RunRow], conditions: list[Json], limit: int, offset: int, form: str
) -> None:
    played = PlayedRuns(placed(many), NODES)
    where: list[Json] = ["and", *(conditions or [["~", "hash", ""]])]
    query: list[Json] = ["from", "reports", where]
    if form == "counts":
        counted: list[Json] = [["function", "count"], "status"]
        query = ["from", "reports", ["extract", counted, where, ["group_by", "status"]]]
    elif form != "rows":
        query += [["order_by", [["end_time", form]]], ["limit", limit], ["offset", offset]]
    select = parse_client_query({"query": json.loads(json.dumps(query))}).select
    plain = MemoryRecords({Entity.REPORTS: everything(played, "reports")})
    answers = []
    for records in (played.records, plain):
        found = Evaluation(MemoryInventory([]), records=records).stream(select, total=True)
        rows = [json.loads(text) for text in found.rows]
        is_page = form in ("asc", "desc")
        shown = [row["end_time"] for row in rows] if is_page else sorted(rows, key=repr)
        answers.append((shown, found.total))
    assert answers[0] == answers[1]


@examples(50)
@given(st.lists(runs, max_size=25), st.lists(event_conditions, max_size=2), st.booleans())
def test_sql_answers_as_a_plain_table_of_all_events(
    many: list[RunRow], conditions: list[Json], is_counted: bool
) -> None:
    played = PlayedRuns(placed(many), NODES)
    query: list[Json] = ["from", "events", ["and", ["~", "report", ""], *conditions]]
    if is_counted:
        by: list[Json] = ["certname", "status"]
        counted: list[Json] = [["function", "count"], *by]
        query[2] = ["extract", counted, query[2], ["group_by", *by]]
    query = json.loads(json.dumps(query))
    select = parse_client_query({"query": query}).select
    plain = MemoryRecords(
        {Entity.EVENTS: everything(played, "events"), Entity.REPORTS: everything(played, "reports")}
    )
    found = Evaluation(MemoryInventory([]), records=plain).stream(select)
    rows = [json.loads(text) for text in found.rows]
    assert sorted(played.ask(query), key=repr) == sorted(rows, key=repr)


def plan(played: PlayedRuns, query: Json) -> list[tuple[int, int, int, str]]:
    """Return SQLite's plan of the last statement of a query: steps with number and parent."""
    statements: list[str] = []
    snapshot = MemoryInventory([])
    lend = snapshot.rows

    @contextmanager
    def traced(*args: Any, **more: Any) -> Iterator[sqlite3.Connection]:
        with lend(*args, **more) as connection:
            connection.set_trace_callback(statements.append)
            yield connection
            connection.set_trace_callback(None)
            (text,) = [one for one in statements if "report_hash" in one and "SELECT" in one][-1:]
            plans.extend(connection.execute(f"EXPLAIN QUERY PLAN {text}"))

    plans: list[tuple[int, int, int, str]] = []
    snapshot.rows = traced  # type: ignore[method-assign]
    select = parse_client_query({"query": query}).select
    [*Evaluation(snapshot, records=played.records).stream(select).rows]
    return plans


@pytest.mark.parametrize(
    ("query", "needed"),
    [
        (
            'reports[hash] { certname = "a" }',
            r"SEARCH history.runs USING PRIMARY KEY \(day=\? AND node=\?\)",
        ),
        ('reports[hash] { certname in ["a", "b"] }', r"\(day=\? AND node=\?\)"),
        ('reports[hash, count()] { certname = "a" group by hash }', r"\(day=\? AND node=\?\)"),
        ("reports[hash] { certname in nodes[certname] { } }", r"\(day=\? AND node=\?\)"),
        (
            f'reports[status, hash] {{ hash = "{"a" * 40}" }}',
            r"\(day=\? AND node=\? AND moment=\?\)",
        ),
        (
            'reports[hash] { end_time > "2026-11-18" }',
            r"SEARCH history.runs USING PRIMARY KEY \(day>\?\)",
        ),
        (
            "reports[hash] { order by end_time desc limit 9 }",
            r"FOR (RIGHT PART|LAST( \d+)? TERMS?) OF ORDER BY",  # the text depends on the version
        ),
        ("reports[hash] { latest_report? = true }", "SCAN history.latest"),
        (
            f'events[report, status] {{ report = "{"a" * 40}" }}',
            r"\(day=\? AND node=\? AND moment=\?\)",
        ),
    ],
)
def test_runs_are_found_by_their_key(query: str, needed: str) -> None:
    played = PlayedRuns([run("a", NOW - MINUTE)], [node("a")])
    steps = [step for _, _, _, step in plan(played, query)]
    assert any(re.search(needed, step) for step in steps), steps
    assert "SCAN history.runs" not in steps or "OF ORDER BY" in needed


def test_reports_without_an_order_are_not_sorted() -> None:
    """A client with a large limit gets all reports, which memory must not hold."""
    played = PlayedRuns([run("a", NOW - MINUTE)], [node("a")])
    steps = plan(played, "reports { limit 999999999 }")
    # Those that are stored, beside those that nodes should have sent.
    stored = next(number for number, _, _, step in steps if step == "LEFT")
    assert not [step for _, part, _, step in steps if part == stored and "TEMP B-TREE" in step]


@pytest.mark.parametrize(
    ("query", "is_found"),
    [
        (["from", "nodes", ["=", "certname", "n7"]], True),
        (["from", "nodes", ["extract", "certname", ["=", "certname", "n7"]]], True),
        (["from", "reports", ["and", ["=", "certname", "n7"], ["=", LATEST, True]]], True),
        (["from", "events", ["and", ["=", "certname", "n7"], ["=", LATEST, True]]], False),
    ],
)
def test_a_question_about_one_node_does_not_look_at_the_others(query: Json, is_found: bool) -> None:
    """All of them may have to send a report, and none has an entry."""
    many = [f"n{number}" for number in range(500)]
    played = PlayedRuns([run(name, LONG_AGO) for name in many], map(late, many))
    select = parse_client_query({"query": query}).select
    limits = QueryLimits(steps=2 * CHECKED_EVERY)
    found = Evaluation(MemoryInventory([]), records=played.records, limits=limits).stream(select)
    assert len([*found.rows]) == is_found


def test_counting_all_reports_does_not_end_the_statement_that_lists_them() -> None:
    """Both look for reports that nodes should have sent, and keep them in a temporary table."""
    played = PlayedRuns([run("a", LONG_AGO + minutes * MINUTE) for minutes in range(3)], NODES)
    some = json.dumps(["in", "certname", ["array", ["a", "d"]]])
    select = parse_client_query({"query": f'["from", "reports", {some}]'}).select
    found = Evaluation(MemoryInventory([]), records=played.records).stream(select, total=True)
    assert len([*found.rows]) == found.total == 4


def test_reports_that_nodes_should_send_are_found_by_an_index() -> None:
    """A fleet that runs in time costs nothing, whatever its size."""
    in_time = [node(f"n{number}", run_interval=1e9) for number in range(500)]
    never_seen = [
        node(f"x{number}", state="unresponsive", received_at=None) for number in range(500)
    ]
    played = PlayedRuns([], [*in_time, *never_seen, late("a"), node("b", state="not trusted")])
    query: Json = ["from", "reports", ["extract", [["function", "count"]]]]
    select = parse_client_query({"query": query}).select
    limits = QueryLimits(steps=2 * CHECKED_EVERY)
    found = Evaluation(MemoryInventory([]), records=played.records, limits=limits).stream(select)
    assert [*found.rows] == ['{"count":2}']


@pytest.mark.parametrize("entities", [("reports",), ("events",), ("nodes", "reports", "events")])
def test_nested_subqueries_are_as_long_as_their_query(entities: tuple[str, ...]) -> None:
    """Where a subquery finds the rows of a relation, its text must not be written twice."""
    condition: Json = ["~", "certname", "a"]
    for level in range(12):
        entity = entities[level % len(entities)]
        condition = ["in", "certname", ["from", entity, ["extract", "certname", condition]]]
    runs = [run(name, NOW, Kind.CHANGED, resources=RESOURCES[:1]) for name in ("a", "b")]
    played = PlayedRuns(runs, [node("a"), node("b")])
    found = played.ask(["from", "reports", ["extract", "certname", condition]])
    assert found == [{"certname": "a"}]


def test_reports_are_counted_by_day_without_those_of_forgotten_nodes() -> None:
    played = PlayedRuns(
        [run(name, NOW - number * DAY, Kind.FAILED) for name in "ab" for number in range(3)],
        [node("a", state="unresponsive", received_at=NOW - MINUTE)],
    )
    played.forgotten = {"b"}
    query: Json = [
        "from",
        "reports",
        ["extract", [["function", "count"], "status"], ["group_by", "status"]],
    ]
    assert played.ask(query) == [{"count": 4, "status": "failed"}]


def test_pages_in_order_of_time_meet_every_report_once() -> None:
    # Many runs end in the same millisecond.
    played = PlayedRuns(run(f"n{number}", NOW - number // 7 * 40_000) for number in range(60))
    hashes = []
    for offset in range(0, 60, 7):
        clauses: list[Json] = [["limit", 7], ["offset", offset]]
        hashes += [row["hash"] for row in played.ask(["from", "reports", *clauses])]
    assert len(hashes) == len({*hashes}) == 60


def test_a_report_is_found_by_its_hash_and_has_every_column() -> None:
    played = PlayedRuns(
        [run("a", NOW - MINUTE, Kind.CHANGED, resources=RESOURCES[:2]), run("a", NOW)], [node("a")]
    )
    (changed,) = played.ask(["from", "reports", ["=", "status", "changed"]])
    (found,) = played.ask(["from", "reports", ["=", "hash", changed["hash"]]])
    assert found == changed
    assert found.keys() == {*COLUMNS[Entity.REPORTS]}
    assert len(str(found["hash"])) == 40
    newest: Json = ["and", ["=", LATEST, True], ["=", "hash", changed["hash"]]]
    assert played.ask(["from", "reports", newest]) == []
    events = played.ask(["from", "events", ["=", "report", changed["hash"]]])
    assert [(row["status"], row["file"], row["line"]) for row in events] == [
        ("failure", "a.pp", 3),
        ("success", "a.pp", None),
    ]
    for wrong in ("", "0" * 40, "g" * 40, "f" * 40, "x"):
        assert played.ask(["from", "reports", ["=", "hash", wrong]]) == []
        assert played.records.find(wrong) is None


def test_an_event_has_every_column_and_no_values() -> None:
    played = PlayedRuns([run("a", NOW, Kind.CHANGED, resources=RESOURCES[1:2])])
    (event,) = played.ask(["from", "events"])
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
    (row,) = played.ask(["from", "nodes"])
    newest: Json = ["and", ["=", LATEST, True], ["=", "certname", "a"]]
    (report,) = played.ask(["from", "reports", newest])
    assert row.keys() == {*COLUMNS[Entity.NODES]}
    assert row["latest_report_hash"] == report["hash"]
    assert row["report_timestamp"] == report[END]
    assert row["report_environment"] == "test"
    assert row["latest_report_status"] == "changed"
    assert row["latest_report_corrective_change"] is True


@examples(60)
@given(
    st.lists(runs, max_size=12),
    st.lists(
        st.one_of(
            st.tuples(
                st.just("="),
                st.just("latest_report_status"),
                st.sampled_from(["failed", "changed"]),
            ),
            st.tuples(
                st.just("="), st.just("latest_report_noop"), st.sampled_from([True, False, "true"])
            ),
            st.tuples(st.just("="), st.just("certname"), st.sampled_from("abx")),
            st.tuples(st.just("null?"), st.just("latest_report_hash"), st.booleans()),
        ),
        min_size=1,
        max_size=3,
    ),
    st.booleans(),
)
def test_nodes_with_a_report_of_some_kind_are_those_of_all_nodes(
    many: list[RunRow], conditions: list[Json], is_either: bool
) -> None:
    """Only the entries of nodes with such a report are read; the answer is the same."""
    played = PlayedRuns(placed(many), NODES)
    where: Json = json.loads(json.dumps(["or" if is_either else "and", *conditions]))
    select = parse_client_query({"query": ["from", "nodes", where]}).select
    listed = [entry(name) for name in "abcx"]
    plain = MemoryRecords({Entity.NODES: played.ask(["from", "nodes"], listed)})
    found = Evaluation(MemoryInventory(listed), records=played.records).stream(select)
    expected = Evaluation(MemoryInventory(listed), records=plain).stream(select)
    assert [*found.rows] == [*expected.rows]
