"""The tables of runs and audit records: filters, order, limits, and what drifts."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localpuppet.base.formats.names import RunId
from localpuppet.fleet.history.history_records import (
    DAY,
    AuditDecision,
    AuditRecord,
    RunCounts,
    day_of,
)
from localpuppet.fleet.inventory.run_end import BAD, GOOD, Kind
from localpuppet.node.puppet.resources import ResourceResult
from localpuppet.web.dashboard import activity, audit_table, run_queries, run_table
from localpuppet.web.dashboard.audit_table import NodeAuditRecord
from localpuppet.web.dashboard.list_query import AUDIT, DRIFT, ListQuery
from localpuppet.web.dashboard.list_query import runs as runs_query
from localpuppet.web.dashboard.run_table import RunRow, RunTableWriter, parts_of, run_of
from tests.fleet.make import a_part
from tests.web.make import run_id, summary

NOW = 1_795_000_000.0


def ended(at: float, node: str = "a", why: str = "") -> RunRow:
    return a_run(at, node, reason=why, seconds=None)


@pytest.fixture
def table() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.executescript(run_table.TABLES)
    yield connection
    connection.close()


def words(table: sqlite3.Connection) -> set[str]:
    return {text for (text,) in table.execute("SELECT text FROM texts")}


def test_a_page_of_runs_spans_days_and_continues_from_any_run(table: sqlite3.Connection) -> None:
    all_ = [ended(NOW - number * DAY / 3) for number in range(12)]
    writing = RunTableWriter(table)
    assert all(writing.add(one) for one in [*all_, ended(NOW, "b"), ended(NOW - 9 * DAY, "c")])
    found = run_queries.of_node(table, "a", limit=5)
    assert found == all_[:5]
    # Also from a run that the table does not have.
    for before in (found[-1].run, run_id(NOW - 4 * DAY / 3 - 0.5)):
        older = run_queries.of_node(table, "a", limit=99, before=RunId(before))
        assert older == all_[5:]
    assert run_queries.of_node(table, "a", limit=9, before=run_id(NOW + 90 * DAY)) == all_[:9]
    assert run_queries.of_node(table, "x", limit=9) == []


def test_the_runs_of_a_node_and_day_are_limited_to_the_newest(table: sqlite3.Connection) -> None:
    writing = RunTableWriter(table, most=3)
    ends = [ended(NOW + number) for number in (5, 0, 1, 2, 3)]
    assert [writing.add(one) for one in [*ends, ended(NOW - DAY)]] == [True] * 3 + [False] * 2 + [
        True
    ]
    assert [one.finished_at - NOW for one in run_queries.of_node(table, "a", limit=9)] == [
        5,
        3,
        2,
        -DAY,
    ]


def test_a_node_with_ever_new_texts_adds_none_to_a_full_day(table: sqlite3.Connection) -> None:
    writing = RunTableWriter(table, most=3)
    for number in range(30):
        writing.add(ended(NOW + number, why=f"why {number}"))
        writing.add(ended(NOW, why=f"another why {number}"))
        writing.add(ended(NOW - 1 - number, why=f"late {number}"))
    assert words(table) == {"a", "why 0", "why 1", "late 0", ""}
    writing.add(ended(NOW + 30, why="why 1"))
    found = [
        (one.finished_at - NOW, one.reason) for one in run_queries.of_node(table, "a", limit=9)
    ]
    assert found == [(30, "why 1"), (29, ""), (28, "")]
    # A text of the day before is removed with that day, also for this one.
    writing.add(ended(NOW - DAY, why="yesterday"))
    writing.add(ended(NOW + 31, why="yesterday"))
    run_table.take_away(table, until=day_of(NOW), most=9)
    assert [one.reason for one in run_queries.of_node(table, "a", limit=1)] == [""]
    assert "yesterday" not in words(table)


def test_a_text_of_many_bytes_is_cut(table: sqlite3.Connection) -> None:
    RunTableWriter(table).add(ended(NOW, why="x" + "\N{SNOWMAN}" * 300))
    (found,) = run_queries.of_node(table, "a", limit=9)
    assert found.reason == "x" + "\N{SNOWMAN}" * 133


def test_a_text_is_removed_with_the_last_day_that_has_it(table: sqlite3.Connection) -> None:
    writing = RunTableWriter(table)
    days = (ended(NOW - DAY, why="both"), ended(NOW - DAY, "b", "once"), ended(NOW, why="both"))
    for one in days:
        writing.add(one)
    assert run_table.take_away(table, until=day_of(NOW), most=1) == 1
    assert {"b", "once"} <= words(table)
    assert run_table.take_away(table, until=day_of(NOW), most=1) == 1
    assert words(table) == {"a", "both", ""}
    assert run_table.take_away(table, until=day_of(NOW), most=1) == 0
    assert run_queries.of_node(table, "a", limit=9) == [days[2]]
    assert run_table.take_away(table, most=9) == 1
    assert words(table) == set()


DETAILS: dict[str, Any] = {
    "commit": "c" * 40,
    "environment": "production",
    "noop": True,
    "corrective_change": True,
    "refusal": "",
    "counts": RunCounts(total=9, changed=2, failed=1, skipped=3, out_of_sync=2, corrective=1),
}


def test_a_full_day_keeps_outcomes_of_runs_with_unknown_profiles(table: sqlite3.Connection) -> None:
    writing = RunTableWriter(table, most=2)
    for number in range(9):
        release = f"web/tags/r{number}"
        writing.add(replace(ended(NOW + number), release=release, seconds=1, **DETAILS))
    assert table.execute("SELECT count(*) FROM profiles").fetchone() == (3,)
    found = run_queries.of_node(table, "a", limit=9)
    assert [(one.outcome, one.release) for one in found] == [(Kind.CHANGED, "")] * 2


def test_numbers_of_runs_and_the_newest_run_follow_every_change(table: sqlite3.Connection) -> None:
    writing = RunTableWriter(table, most=3)
    for number in range(5):
        writing.add(ended(NOW + number))
        writing.add(ended(NOW - DAY + number, "b"))
    # A later version of a run: it ended on the next day.
    writing.add(replace(ended(NOW + 4), finished_at=NOW + DAY, seconds=5, **DETAILS))
    assert tallies(table) == {
        (day_of(NOW) - 1, "changed"): 3,
        (day_of(NOW), "changed"): 2,
        (day_of(NOW) + 1, "changed"): 1,
    }
    newest = "SELECT text, ended FROM latest JOIN texts ON id = node"
    assert dict(table.execute(newest).fetchall()) == {
        "a": round((NOW + DAY) * 1000),
        "b": round((NOW - DAY + 4) * 1000),
    }
    run_table.take_away(table, until=day_of(NOW), most=99)
    assert [node for node, _ in table.execute(newest)] == ["a"]
    assert [run_table.take_away(table, most=99) for _ in range(2)] == [2, 1]
    assert tallies(table) == {}
    assert table.execute("SELECT count(*) FROM profiles").fetchone() == (0,)


def tallies(table: sqlite3.Connection) -> dict[tuple[int, str], int]:
    found = table.execute(
        "SELECT tallies.day, outcome, sum(runs) FROM tallies JOIN profiles ON id = profile"
        " WHERE runs > 0 GROUP BY 1, 2"
    )
    return {(day, outcome): runs for day, outcome, runs in found}


def test_a_run_is_found_by_its_id_whenever_it_ended(table: sqlite3.Connection) -> None:
    midnight = (day_of(NOW) + 1) * DAY
    part = a_part("File[/a]", status=ResourceResult.CHANGED)
    all_ = [
        replace(ended(midnight - 60), finished_at=at, seconds=60, resources=(part,))
        for at in (midnight - 1, midnight + 1, midnight + 3 * DAY)
    ]
    writing = RunTableWriter(table)
    for number, run in enumerate(all_):
        assert writing.add(replace(run, seconds=60 + number))
        assert not writing.add(replace(run, seconds=None))
        known = run_queries.of_id(table, RunId(run.run), "a")
        assert known is not None
        assert (known.finished_at, known.run, known.resources) == (
            run.finished_at,
            run.run,
            (part,),
        )
        id_ = RunId(run.run)
        assert run_queries.between(table, id_, id_, limit=2) == [replace(known, resources=())]
    assert table.execute("SELECT count(*) FROM runs").fetchone() == (1,)
    assert table.execute("SELECT count(*) FROM resources").fetchone() == (1,)
    plan = table.execute(
        f"EXPLAIN QUERY PLAN SELECT * FROM runs WHERE node = :node AND {run_table.HAS_ID}",  # noqa: S608
        {"node": 1, **run_table.id_values(id_)},
    )
    assert not [row for row in plan if "SCAN" in row[3]]


FORMAT_9 = """
CREATE TABLE texts (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE, day INTEGER NOT NULL) STRICT;
CREATE TABLE profiles (
    id INTEGER PRIMARY KEY, outcome TEXT NOT NULL, release TEXT NOT NULL, environment TEXT NOT NULL,
    commit_id TEXT NOT NULL, noop INTEGER NOT NULL, corrective INTEGER NOT NULL,
    refusal TEXT NOT NULL, day INTEGER NOT NULL, first INTEGER NOT NULL
) STRICT;
CREATE TABLE runs (
    day INTEGER NOT NULL, node INTEGER NOT NULL, moment INTEGER NOT NULL, at INTEGER NOT NULL,
    profile INTEGER NOT NULL, counts INTEGER, reason INTEGER NOT NULL,
    cause INTEGER NOT NULL, seconds INTEGER, more INTEGER NOT NULL,
    PRIMARY KEY (day, node, moment)
) STRICT, WITHOUT ROWID;
CREATE INDEX long_runs ON runs (day) WHERE at >= 172800000;
CREATE TABLE tallies (day INTEGER NOT NULL, profile INTEGER NOT NULL, runs INTEGER NOT NULL,
    PRIMARY KEY (day, profile)) STRICT, WITHOUT ROWID;
CREATE TABLE latest (
    node INTEGER PRIMARY KEY, day INTEGER NOT NULL, moment INTEGER NOT NULL, ended INTEGER NOT NULL
) STRICT;
CREATE TABLE run_changes (one INTEGER PRIMARY KEY, number INTEGER NOT NULL) STRICT;
CREATE TRIGGER run_added AFTER INSERT ON runs BEGIN UPDATE run_changes SET number = 1; END;
CREATE TRIGGER run_deleted AFTER DELETE ON runs BEGIN UPDATE run_changes SET number = 1; END;
CREATE TABLE resources (
    day INTEGER NOT NULL, node INTEGER NOT NULL, moment INTEGER NOT NULL, number INTEGER NOT NULL,
    resource INTEGER NOT NULL, result INTEGER NOT NULL, PRIMARY KEY (day, node, moment, number)
) STRICT, WITHOUT ROWID;
INSERT INTO texts VALUES (1, 'a', {day}), (2, '', {day}), (3, char(9, 9, 9) || 'File[/a]', {day});
INSERT INTO profiles VALUES (1, 'changed', 'web/tags/r1', '', '', 0, 0, '', {day}, {day});
INSERT INTO runs VALUES
    ({day}, 1, {moment}, 86399000, 1, NULL, 2, 2, 5, 0),
    ({day}, 1, {moment} + 1, 86401000, 1, NULL, 2, 2, 5, 0),
    ({day}, 1, {moment} + 2, 259201000, 1, NULL, 2, 2, 5, 0);
INSERT INTO resources SELECT day, node, moment, 0, 3, 2 FROM runs;
INSERT INTO latest VALUES (1, {day}, {moment} + 2, ({day} + 3) * 86400000 + 1000);
"""


def write_format_9(path: Path) -> None:
    """Write the memory of a dashboard with three runs of the node a, in format 9."""
    day, moment = parts_of(RunId(run_id(NOW)))
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            FORMAT_9.format(day=day, moment=moment)  # noqa: S608
            + "CREATE TABLE nodes (node TEXT PRIMARY KEY, row TEXT NOT NULL) STRICT, WITHOUT ROWID;"
            + "CREATE TABLE state (one INTEGER PRIMARY KEY, last_updated REAL) STRICT;"
            + "INSERT INTO state VALUES (1, 1.5); INSERT INTO nodes VALUES ('a', '{}');"
            + "PRAGMA user_version = 9"
        )


def test_runs_of_an_earlier_format_are_filed_by_the_day_on_which_they_ended() -> None:
    day, moment = parts_of(RunId(run_id(NOW)))
    connection = sqlite3.connect(":memory:")
    connection.executescript(FORMAT_9.format(day=day, moment=moment))
    before = connection.execute("SELECT day * 86400000 + at FROM runs").fetchall()
    connection.executescript(run_table.CONVERSION + run_table.TABLES)
    found = run_queries.of_node(connection, "a", limit=9)
    ids = [run_of(day, moment + number) for number in (2, 1, 0)]
    assert [run.run for run in found] == ids
    assert [(round(run.finished_at * 1000),) for run in reversed(found)] == before
    assert all(len(run.resources) == 1 for run in found)
    newest = "SELECT moment FROM latest JOIN runs USING (day, node, moment)"
    assert len(connection.execute(newest).fetchall()) == 1
    for _ in range(3):
        run_table.take_away(connection, most=9)
    assert words(connection) == set()
    connection.close()


MOTD = a_part(
    "File[/etc/motd]", file="profile/manifests/motd.pp", line=3, status=ResourceResult.CHANGED
)


def a_run(at: float, node: str = "a", **more: object) -> RunRow:
    own = {"outcome": Kind.CHANGED, "release": "web/tags/r1", "cause": "", "seconds": 5}
    return summary(node, at, **{**own, **more})


def write(table: sqlite3.Connection, *runs: RunRow, most_resources: int = 9) -> None:
    writing = RunTableWriter(table, most_resources=most_resources)
    for run in runs:
        writing.add(run)


def test_a_summary_completes_a_known_run(table: sqlite3.Connection) -> None:
    whole = a_run(NOW, cause="timer", resources=(MOTD,), more=2, reason="x", **DETAILS)
    write(table, a_run(NOW, seconds=None))
    assert run_queries.of_node(table, "a", limit=9)[0].counts is None
    for _ in range(2):
        write(table, whole)
        assert run_queries.of_node(table, "a", limit=9) == [whole]
        write(table, a_run(NOW, seconds=None))
        assert run_queries.of_node(table, "a", limit=9) == [whole]
    assert tallies(table) == {(day_of(NOW), "changed"): 1}
    # A refused apply that is refused again has the same id.
    later = replace(whole, finished_at=NOW + 60, seconds=65)
    write(table, later)
    assert run_queries.of_node(table, "a", limit=9) == [later]


def test_the_resources_of_a_node_and_day_are_limited(table: sqlite3.Connection) -> None:
    many = tuple(replace(MOTD, type="File", title=f"/{number}") for number in range(6))
    write(
        table,
        a_run(NOW, resources=many),
        a_run(NOW + 1, resources=many),
        a_run(NOW, "b", resources=many),
    )
    last, first = run_queries.of_node(table, "a", limit=9)
    assert (len(first.resources), first.more, len(last.resources), last.more) == (6, 0, 3, 3)
    assert len(run_queries.of_node(table, "b", limit=1)[0].resources) == 6


def test_runs_of_many_nodes_are_filtered_by_end_result_and_node(table: sqlite3.Connection) -> None:
    runs = [a_run(NOW - number * 3600, f"n{number % 3}") for number in range(60)]
    failed = [a_run(NOW - 7200 - number, "n9", outcome=Kind.FAILED) for number in range(3)]
    # It was requested before midnight, and ended after it.
    midnight = day_of(NOW) * DAY
    late = replace(a_run(midnight - 10, "z"), finished_at=midnight + 30.0)
    write(table, *runs, *failed, late)

    def found(names: Sequence[str] | None = None, **more: Any) -> list[RunRow]:
        asked = runs_query(**more).whole
        return list(run_queries.listed(table, asked, names, now=NOW, limit=100).rows)

    everything = found()
    assert len(everything) == 64
    assert everything[:2] == runs[:2]
    assert found(result=BAD) == failed
    assert found(result=GOOD) == []
    assert found(["n1"], since=NOW - 4 * 3600) == [runs[1], runs[4]]
    assert found([]) == []
    assert found(since=midnight, until=midnight + 60) == [late]
    assert found(until=NOW) == everything[1:]


def test_the_last_good_and_the_first_run_of_a_release_are_found(table: sqlite3.Connection) -> None:
    good, bad = a_run(NOW - 9 * DAY), a_run(NOW, outcome=Kind.FAILED, release="web/tags/r2")
    write(table, bad, a_run(NOW - 60, outcome=Kind.NOOP_CLEAN), good, a_run(NOW - 10 * DAY))
    kinds = run_table.GOOD_KINDS
    assert run_queries.of_node(table, "a", limit=1, kinds=kinds) == [good]
    assert run_queries.of_node(table, "b", limit=1, kinds=kinds) == []
    assert run_queries.first_of_release(table, "web/tags/r2") == NOW
    assert run_queries.first_of_release(table, "web/tags/r1") == NOW - 10 * DAY
    assert run_queries.first_of_release(table, "web/tags/r3") is None


def test_the_first_failed_run_after_a_good_one_is_found(table: sqlite3.Connection) -> None:
    good = a_run(NOW - 9 * DAY)
    first = a_run(NOW - 8 * DAY, outcome=Kind.FAILED, release="web/tags/r2")
    later = a_run(NOW, outcome=Kind.FAILED, release="web/tags/r3")
    other = a_run(NOW - 8.5 * DAY, "b", outcome=Kind.FAILED)
    earlier = a_run(NOW - 9 * DAY - 60, outcome=Kind.FAILED)
    noop = a_run(NOW - 9 * DAY + 60, outcome=Kind.NOOP_CLEAN)
    write(table, later, first, good, other, earlier, noop)
    assert run_queries.first_bad(table, [good]) == {"a": first}
    assert run_queries.first_bad(table, [later]) == {}


def test_a_node_has_counts_of_runs_by_day(table: sqlite3.Connection) -> None:
    today = day_of(NOW)
    write(
        table,
        a_run(NOW),
        a_run(NOW - 5, outcome=Kind.FAILED),
        a_run(NOW - DAY),
        a_run(NOW - 3 * DAY),
        a_run(NOW, "b"),
    )
    assert run_queries.days_of(table, "a", [today - 1, today]) == {
        (today, Kind.CHANGED): 1,
        (today, Kind.FAILED): 1,
        (today - 1, Kind.CHANGED): 1,
    }


def test_a_change_drifts_if_the_release_was_already_applied(table: sqlite3.Connection) -> None:
    ssh = replace(MOTD, type="Service", title="ssh", file="", line=None)
    corrective = replace(ssh, corrective_change=True)
    write(
        table,
        a_run(NOW - 2 * DAY, resources=(MOTD,)),  # the first run of the release
        a_run(NOW - DAY, outcome=Kind.UNCHANGED),
        a_run(NOW - 60, resources=(MOTD, replace(ssh, status=ResourceResult.SKIPPED))),
        a_run(NOW - 50, resources=(MOTD,)),
        a_run(NOW - 40, release="web/tags/r2", resources=(MOTD,)),
        a_run(NOW - 30, release="web/tags/r3", outcome=Kind.FAILED, resources=(MOTD,)),
        a_run(NOW - 20, release="web/tags/r3", resources=(MOTD,)),
        a_run(NOW - 10, "b", resources=(corrective,)),
    )
    asked, today = ListQuery(form=DRIFT, page=None), day_of(NOW) + activity.DRIFT_DAYS
    found = activity.listed(table, asked, None, today=today - 1).rows
    assert [(one.node, one.resource, one.place, one.count) for one in found] == [
        ("a", MOTD.resource, MOTD.place, 2),
        ("b", "Service[ssh]", "", 1),
    ]
    assert (found[0].last, found[0].run) == (NOW - 50, run_id(NOW - 50))
    motd, service = activity.listed(table, asked.with_(), None, today=today - 1).rows
    assert (motd.resource, motd.count, motd.nodes) == (MOTD.resource, 2, ["a"])
    assert (motd.newest, service.nodes) == (found[0], ["b"])
    assert len(activity.listed(table, asked, ["b"], today=today - 1).rows) == 1
    assert activity.listed(table, asked, None, today=today + 1).rows == []


def test_resources_go_with_their_runs(table: sqlite3.Connection) -> None:
    write(table, *(a_run(NOW + second, resources=(MOTD,)) for second in range(3)))
    assert run_table.take_away(table, most=2) == 2
    assert table.execute("SELECT count(*) FROM resources").fetchone() == (1,)
    run_table.take_away(table, most=2)
    assert table.execute("SELECT count(*) FROM texts").fetchone() == (0,)


def record(at: float, caller: str = "alice", **more: object) -> AuditRecord:
    one = AuditRecord(
        at=at,
        caller=caller,
        action="run",
        subject="web/tags/r1",
        decision=AuditDecision.ACCEPTED,
        reason="",
        request=f"{caller}-{at}",
    )
    return replace(one, **more)  # type: ignore[arg-type]


@pytest.fixture
def log() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.executescript(audit_table.TABLES)
    yield connection
    connection.close()


def audit(log: sqlite3.Connection, *, limit: int = 9, **fields: Any) -> Sequence[NodeAuditRecord]:
    asked = ListQuery(form=AUDIT, **fields).whole
    return audit_table.listed(log, asked, limit=limit).rows


def test_requests_come_newest_first_and_by_caller_or_node(log: sqlite3.Connection) -> None:
    audit_table.write(log, "web01", [record(NOW), record(NOW - 20, "bob")])
    audit_table.write(log, "web02", [record(NOW - 10, decision=AuditDecision.REFUSED)])
    found = audit(log)
    assert [(one.node, one.record.caller) for one in found] == [
        ("web01", "alice"),
        ("web02", "alice"),
        ("web01", "bob"),
    ]
    assert found[1].record == record(NOW - 10, decision=AuditDecision.REFUSED)
    assert audit(log, since=NOW - 10, until=NOW) == found[1:2]
    assert audit(log, name="tags/r1", limit=1) == found[:1]
    assert audit(log, name="tags/_1", limit=1) == []


def test_requests_of_one_intent_are_one_row(log: sqlite3.Connection) -> None:
    def asks(node: str, ago: float, subject: str, **more: Any) -> None:
        more = {"caller": "choria=alice", "action": "disable", **more}
        audit_table.write(log, node, [record(NOW - ago, subject=subject, **more)])

    rollout = "rollout 20261122T110000Z-0a1b"
    for number in range(8):
        node, step = f"web{number:02}", {"action": "runonce", "decision": AuditDecision.REFUSED}
        asks(node, 400 - number, f"{rollout}, for 5m")
        asks(node, 300 - 40 * number, f"{rollout} step 1", **(step if number == 3 else {}))
        asks(node, 90 + number, "disk is full, for 2h")
    asks("desk", 89, "hold (for 2h: disk is full): 8 accepted; 8 nodes (web00)", action="send")
    asks("desk", 11, f"start a rollout: A process has started {rollout}.; 8 nodes", action="send")
    asks("web00", 80, "another reason")
    asks("web00", 5000, "disk is full, for 2h")
    asks("web01", 6000, "noop, tag nginx", action="runonce")
    asks("web02", 10, f"{rollout} step 1", caller="choria=eve")
    asked = ListQuery.parse({}, AUDIT)
    page = audit_table.intents(log, asked, limit=999)
    found = [(one.caller, one.label, one.subject, len(one.nodes), one.total) for one in page.rows]
    mine = "choria=alice"
    assert found == [
        ("choria=eve", "Start a rollout", "", 1, 1),
        (mine, "Put on hold", "another reason", 1, 1),
        (mine, "Put on hold", "disk is full, for 2h", 8, 9),
        (mine, "Start a rollout", "", 8, 17),
        (mine, "Put on hold", "disk is full, for 2h", 1, 1),
        (mine, "Noop run", "tag nginx", 1, 1),
    ]
    assert dict(page.rows[3].decisions) == {"accepted": 16, "refused": 1}
    assert (page.total, page.rows[3].at) == (6, NOW - 400)
    oldest_first = audit_table.intents(log, asked.by("at"), limit=999)
    assert [one.at for one in oldest_first.rows] == sorted(one.at for one in page.rows)


def test_a_repeated_record_replaces_the_earlier_record(log: sqlite3.Connection) -> None:
    for times in (1, 7):
        audit_table.write(log, "web01", [record(NOW, times=times)])
    assert [one.record.times for one in audit(log)] == [7]


def test_old_records_and_those_beyond_a_number_are_deleted(log: sqlite3.Connection) -> None:
    audit_table.write(log, "web01", [record(NOW - second) for second in range(9)])
    audit_table.take_away(log, oldest=NOW - 6, most=9)
    assert len(audit(log)) == 7
    audit_table.take_away(log, oldest=NOW - 6, most=3)
    assert [one.record.at for one in audit(log)] == [NOW, NOW - 1, NOW - 2]
    some = [record(NOW - second) for second in range(audit_table.MOST_OF_ONE + 50)]
    audit_table.write(log, "web02", some)
    kept = audit(log, node="web02", limit=2 * len(some))
    assert [one.record for one in kept] == some[: audit_table.MOST_OF_ONE]
    assert len(audit(log, node="web01")) == 3


_ids = st.builds(
    lambda time, digits: RunId(f"{time.year:04}{time:%m%dT%H%M%S.%f}Z-{digits:04x}"),
    st.datetimes(),
    st.integers(0, 0xFFFF),
).filter(lambda run: run[:4] != "9999")


@given(_ids, _ids)
def test_an_id_is_restored_from_parts_that_sort_as_it_does(one: RunId, other: RunId) -> None:
    assert run_of(*parts_of(one)) == one
    assert (parts_of(one) < parts_of(other)) == (one < other)


def test_a_day_is_that_of_its_times() -> None:
    run = RunId("20261122T235959.999999Z-ffff")
    assert parts_of(run)[0] == day_of(run.time.timestamp()) == day_of(20_779 * DAY)
    assert parts_of(run)[1] < 2**63
