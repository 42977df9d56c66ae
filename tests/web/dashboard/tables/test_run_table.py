"""Ends of runs in their tables."""

import sqlite3
from collections.abc import Iterator

import pytest

from localpuppet.base.formats.names import RunId
from localpuppet.fleet.history.day import DAY, day_of
from localpuppet.fleet.inventory.run_kind import Kind
from localpuppet.web.dashboard.run_results import RunResult
from localpuppet.web.dashboard.tables import run_queries, run_table
from localpuppet.web.dashboard.tables.run_table import RunTableWriter
from tests.web.dashboard.site import run_id

NOW = 1_795_000_000.0


def ended(at: float, node: str = "a", why: str = "") -> RunResult:
    return RunResult(
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


def test_a_page_of_runs_goes_over_days_and_goes_on_from_any_run(table: sqlite3.Connection) -> None:
    all_ = [ended(NOW - number * DAY / 3) for number in range(12)]
    writing = RunTableWriter(table)
    assert all(writing.add(one) for one in [*all_, ended(NOW, "b"), ended(NOW - 9 * DAY, "c")])
    found = run_queries.of_node(table, "a", limit=5)
    assert found == all_[:5]
    # From one that nobody knows, too.
    for before in (found[-1].run, run_id(NOW - 4 * DAY / 3 - 0.5)):
        older = run_queries.of_node(table, "a", limit=99, before=RunId(before))
        assert older == all_[5:]
    assert run_queries.of_node(table, "a", limit=9, before=run_id(NOW + 90 * DAY)) == all_[:9]
    assert run_queries.of_node(table, "x", limit=9) == []


def test_a_node_has_so_many_runs_of_a_day_and_the_newest_are_kept(
    table: sqlite3.Connection,
) -> None:
    writing = RunTableWriter(table, most=3)
    ends = [ended(NOW + number) for number in (5, 0, 1, 2, 3)]
    assert [writing.add(one) for one in [*ends, ended(NOW - DAY)]] == [True] * 3 + [False] * 2 + [
        True
    ]
    assert [one.at - NOW for one in run_queries.of_node(table, "a", limit=9)] == [5, 3, 2, -DAY]


def test_who_tells_something_new_all_the_time_adds_no_words_to_a_full_day(
    table: sqlite3.Connection,
) -> None:
    writing = RunTableWriter(table, most=3)
    for number in range(30):
        writing.add(ended(NOW + number, why=f"why {number}"))
        writing.add(ended(NOW, why=f"another why {number}"))
        writing.add(ended(NOW - 1 - number, why=f"late {number}"))
    assert words(table) == {"a", "changed", "web/tags/r1", "why 0", "why 1", "late 0", ""}
    writing.add(ended(NOW + 30, why="why 1"))
    found = [(one.at - NOW, one.reason) for one in run_queries.of_node(table, "a", limit=9)]
    assert found == [(30, "why 1"), (29, ""), (28, "")]
    # A word of a day before, which goes with that day, is none of this one.
    writing.add(ended(NOW - DAY, why="yesterday"))
    writing.add(ended(NOW + 31, why="yesterday"))
    run_table.take_away(table, until=day_of(NOW), most=9)
    assert [one.reason for one in run_queries.of_node(table, "a", limit=1)] == [""]
    assert "yesterday" not in words(table)


def test_a_word_of_many_bytes_is_cut(table: sqlite3.Connection) -> None:
    RunTableWriter(table).add(ended(NOW, why="x" + "\N{SNOWMAN}" * 300))
    (found,) = run_queries.of_node(table, "a", limit=9)
    assert found.reason == "x" + "\N{SNOWMAN}" * 133


def test_a_word_goes_with_the_last_day_that_had_it(table: sqlite3.Connection) -> None:
    writing = RunTableWriter(table)
    days = (ended(NOW - DAY, why="both"), ended(NOW - DAY, "b", "once"), ended(NOW, why="both"))
    for one in days:
        writing.add(one)
    assert run_table.take_away(table, until=day_of(NOW), most=1) == 1
    assert {"b", "once"} <= words(table)
    assert run_table.take_away(table, until=day_of(NOW), most=1) == 1
    assert words(table) == {"a", "changed", "web/tags/r1", "both", ""}
    assert run_table.take_away(table, until=day_of(NOW), most=1) == 0
    assert run_queries.of_node(table, "a", limit=9) == [days[2]]
    assert run_table.take_away(table, most=9) == 1
    assert words(table) == set()
