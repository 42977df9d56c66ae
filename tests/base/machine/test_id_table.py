"""The table of ids: counts by owner, expiry, and the cost of each call."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from localpuppet.base.machine.sqlite import TABLES, IdTable
from tests.doubles.ports import FakeClock

NOW = int(FakeClock().now().timestamp())


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as opened:
        opened.executescript(TABLES)
        yield opened


def ids(connection: sqlite3.Connection) -> list[str]:
    return [row[0] for row in connection.execute("SELECT id FROM seen ORDER BY id")]


def test_counts_match_the_stored_rows(connection: sqlite3.Connection) -> None:
    table = IdTable(always=1)
    for owner, name in ("a1", "a2", "b1", "a2"):
        table.add(connection, owner, name, NOW)
    assert (table.of(connection, "a"), table.of(connection, "b")) == (2, 1)
    assert table.total(connection) == 3
    table.forget(connection, NOW + 1)
    assert table.total(connection) == len(ids(connection)) == 1
    table.forget_all(connection, NOW + 1)
    assert table.total(connection) == table.of(connection, "a") == 0
    assert connection.execute("SELECT count(*) FROM owners").fetchone() == (0,)


def test_an_id_is_kept_until_its_latest_expiry(connection: sqlite3.Connection) -> None:
    table = IdTable(always=0)
    for until in (NOW + 5, NOW + 9, NOW + 1):
        table.add(connection, "a", "1", until)
    table.forget(connection, NOW + 9)
    assert table.has(connection, "a", "1")
    table.forget(connection, NOW + 10)
    assert not table.has(connection, "a", "1")


def test_no_call_reads_the_whole_table(connection: sqlite3.Connection) -> None:
    table = IdTable()
    rows = ((f"o{n % 7}", str(n), NOW + n % 100) for n in range(20_000))
    connection.executemany("INSERT INTO seen VALUES (?, ?, ?)", rows)
    connection.execute("INSERT INTO owners SELECT owner, count(*) FROM seen GROUP BY owner")
    traced: list[str] = []
    connection.set_trace_callback(traced.append)
    table.has(connection, "o1", "1")
    table.add(connection, "o1", "new", NOW)
    table.of(connection, "o1")
    table.total(connection)
    table.forget(connection, NOW + 50, more=1)
    table.forget_all(connection, NOW + 50)
    connection.set_trace_callback(None)
    statements = [text for text in traced if not text.startswith("--")]
    assert len(statements) > 8
    for text in statements:
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}")]
        assert not [step for step in plan if step.startswith("SCAN seen")], (text, plan)
