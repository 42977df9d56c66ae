"""Small databases: how long their files stay open."""

import gc
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from localpuppet.base.errors import StateError
from localpuppet.base.machine.sqlite import OLDEST, TABLES, Database, Format, IdTable, check_version
from tests.doubles.ports import FakeClock
from tests.rigs.node import REPOSITORY, completed


def opened(path: Path) -> bool:
    """Return whether this process has the file open."""
    links = [file for file in Path("/proc/self/fd").iterdir() if file.exists()]
    return any(file.resolve() == path for file in links)


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "state" / "ids.sqlite"
    yield path
    assert not opened(path)


def database(path: Path) -> Database:
    made = Database(path, Format(tables="CREATE TABLE IF NOT EXISTS a (b)", version=1), damaged="")
    with made.transaction() as connection:
        connection.execute("INSERT INTO a VALUES (1)")
    return made


def test_close_closes_the_file_and_the_next_use_opens_it(path: Path) -> None:
    made = database(path)
    assert opened(path)
    for _ in range(2):
        made.close()
        assert not opened(path)
    with made.use() as connection:
        assert connection.execute("SELECT count(*) FROM a").fetchone() == (1,)
        assert opened(path)
    made.close()


def test_the_file_is_closed_when_its_object_is_deleted(path: Path) -> None:
    made = database(path)
    assert opened(path)
    del made
    gc.collect()
    assert not opened(path)


def test_the_log_survives_the_end_of_another_process_beside_two_connections(path: Path) -> None:
    first, second = database(path), database(path)
    completed(sys.executable, "-c", _LOOK, path)
    log = path.with_name(f"{path.name}-wal")
    assert log.exists()
    for made in (first, second):
        with made.transaction() as connection:
            connection.execute("INSERT INTO a VALUES (2)")
    with first.use() as connection:
        assert connection.execute("SELECT count(*) FROM a").fetchone() == (4,)
    for made in (first, second):
        made.close()


def test_make_creates_a_file_with_its_first_rows_or_no_file(path: Path) -> None:
    made = Database(
        path, Format(tables="CREATE TABLE a (b)", version=1), damaged="", only_made=True
    )
    with pytest.raises(StateError, match="is not there"), made.use():
        pass
    with pytest.raises(ZeroDivisionError):
        made.make(lambda _: 1 // 0)
    assert not path.exists()
    assert made.make(_insert)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o777 == 0o600
    assert not made.make(_insert), "an existing file is kept"
    again = database(path)
    with again.snapshot() as connection:
        assert connection.execute("SELECT b FROM a").fetchall() == [(7,), (1,)]
    again.close()


def test_a_new_file_ignores_the_log_of_a_file_that_was_moved_away(path: Path) -> None:
    """SIGKILL left the last writes in the log, and SQLite would apply them to the new file."""
    code = (
        "import os, sys; from pathlib import Path; "
        "from tests.base.machine.test_database import database; "
        "made = database(Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    )
    assert completed(sys.executable, "-c", code, path, cwd=REPOSITORY, check=False).code == -9
    assert path.with_name(f"{path.name}-wal").stat().st_size
    path.rename(path.with_name("damaged"))
    made = Database(path, Format(tables="CREATE TABLE IF NOT EXISTS a (b)", version=1), damaged="")
    assert made.make(_insert)
    with made.use() as connection:
        assert connection.execute("SELECT b FROM a").fetchall() == [(7,)]
    made.close()


def test_the_first_writer_of_a_made_file_does_not_wait_for_a_reader(path: Path) -> None:
    """A rollout starts while the dashboard reads the file: no set-up is left that needs a lock."""
    made = Database(path, Format(tables="CREATE TABLE IF NOT EXISTS a (b)", version=1), damaged="")
    assert made.make(_insert)
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT b FROM a").fetchall() == [(7,)]
        with made.use() as connection:
            connection.execute("INSERT INTO a VALUES (8)")
    made.close()


def _insert(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO a VALUES (7)")


_LOOK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
print(connection.execute("SELECT count(*) FROM a").fetchone())
connection.close()
"""


_CONVERT = """
import sys
from pathlib import Path
from localpuppet.base.machine.sqlite import Database, Format

class Traced(Database):
    def _connect(self, **options):
        connection = super()._connect(**options)
        connection.set_trace_callback(lambda statement: print(statement, flush=True))
        return connection

conversion = "CREATE TABLE new (b INTEGER); INSERT INTO new SELECT b + 1 FROM a; DROP TABLE a;"
form = Format(tables="CREATE TABLE IF NOT EXISTS new (b)", version=2, conversions={1: conversion})
with Traced(Path(sys.argv[1]), form, damaged="").use():
    pass
"""


def test_one_of_two_processes_that_open_a_file_of_an_earlier_format_converts_it(path: Path) -> None:
    database(path).close()
    processes = []
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        for _ in range(2):
            process = subprocess.Popen(
                [sys.executable, "-c", _CONVERT, path],
                cwd=REPOSITORY,
                stdout=subprocess.PIPE,
                text=True,
            )
            processes.append(process)
            assert process.stdout is not None
            assert any(line.startswith("BEGIN IMMEDIATE") for line in process.stdout)
        writer.execute("COMMIT")
        for process in processes:
            with process:
                process.communicate()
            assert process.returncode == 0
        assert writer.execute("SELECT b FROM new").fetchall() == [(2,)]
        assert writer.execute("PRAGMA user_version").fetchone() == (2,)


def test_a_version_of_sqlite_that_is_too_old_is_named() -> None:
    check_version(OLDEST)
    with pytest.raises(StateError, match=r"SQLite: version 3\.40\.0 is too old.*needs 3\.40\.1"):
        check_version((3, 40, 0))


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
