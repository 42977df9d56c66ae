"""Ends of runs in their tables."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.formats.names import RunId
from localpuppet.fleet.history.day import DAY, day_of
from localpuppet.fleet.history.run_summary import RunCounts
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.node.puppet.resources import ResourceResult
from localpuppet.web.dashboard.run_row import RunRow
from localpuppet.web.dashboard.tables import run_queries, run_table
from localpuppet.web.dashboard.tables.run_table import RunTableWriter, parts_of, run_of
from tests.fleet.make import a_part
from tests.web.dashboard.site import run_id

NOW = 1_795_000_000.0


def ended(at: float, node: str = "a", why: str = "") -> RunRow:
    return RunRow(
        node=node, run=run_id(at), at=at, outcome=Kind.CHANGED, release="web/tags/r1", reason=why
    )


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


def test_the_runs_of_a_node_and_day_are_limited_to_the_newest(
    table: sqlite3.Connection,
) -> None:
    writing = RunTableWriter(table, most=3)
    ends = [ended(NOW + number) for number in (5, 0, 1, 2, 3)]
    assert [writing.add(one) for one in [*ends, ended(NOW - DAY)]] == [True] * 3 + [False] * 2 + [
        True
    ]
    assert [one.at - NOW for one in run_queries.of_node(table, "a", limit=9)] == [5, 3, 2, -DAY]


def test_a_node_with_ever_new_texts_adds_none_to_a_full_day(
    table: sqlite3.Connection,
) -> None:
    writing = RunTableWriter(table, most=3)
    for number in range(30):
        writing.add(ended(NOW + number, why=f"why {number}"))
        writing.add(ended(NOW, why=f"another why {number}"))
        writing.add(ended(NOW - 1 - number, why=f"late {number}"))
    assert words(table) == {"a", "why 0", "why 1", "late 0", ""}
    writing.add(ended(NOW + 30, why="why 1"))
    found = [(one.at - NOW, one.reason) for one in run_queries.of_node(table, "a", limit=9)]
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
    "corrective": True,
    "refusal": "",
    "counts": RunCounts(total=9, changed=2, failed=1, skipped=3, out_of_sync=2, corrective=1),
}


def test_a_summary_adds_its_details_to_a_known_run(
    table: sqlite3.Connection,
) -> None:
    writing = RunTableWriter(table)
    writing.add(ended(NOW))
    assert run_queries.of_node(table, "a", limit=9)[0].counts is None
    told = replace(ended(NOW), seconds=5, **DETAILS)
    writing.add(told)
    writing.add(ended(NOW))
    assert run_queries.of_node(table, "a", limit=9) == [told]
    assert tallies(table) == {(day_of(NOW), "changed"): 1}


def test_a_full_day_keeps_the_outcome_of_a_run_with_an_unknown_profile(
    table: sqlite3.Connection,
) -> None:
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
    writing.add(replace(ended(NOW + 4), at=NOW + DAY, seconds=5, **DETAILS))
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
        replace(ended(midnight - 60), at=at, seconds=60, resources=(part,))
        for at in (midnight - 1, midnight + 1, midnight + 3 * DAY)
    ]
    writing = RunTableWriter(table)
    for number, run in enumerate(all_):
        assert writing.add(replace(run, seconds=60 + number))
        assert not writing.add(replace(run, seconds=None))
        known = run_queries.of_id(table, RunId(run.run), "a")
        assert known is not None
        assert (known.at, known.run, known.resources) == (run.at, run.run, (part,))
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
    assert [(round(run.at * 1000),) for run in reversed(found)] == before
    assert all(len(run.resources) == 1 for run in found)
    newest = "SELECT moment FROM latest JOIN runs USING (day, node, moment)"
    assert len(connection.execute(newest).fetchall()) == 1
    for _ in range(3):
        run_table.take_away(connection, most=9)
    assert words(connection) == set()
    connection.close()
