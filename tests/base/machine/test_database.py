"""Small databases: how long their files are open."""

import gc
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from localpuppet.base.errors import StateError
from localpuppet.base.machine.database import Database, Format
from tests.rigs.node import REPOSITORY


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


def test_a_file_is_closed_when_it_is_said_and_opened_when_it_is_used(path: Path) -> None:
    made = database(path)
    assert opened(path)
    for _ in range(2):
        made.close()
        assert not opened(path)
    with made.use() as connection:
        assert connection.execute("SELECT count(*) FROM a").fetchone() == (1,)
        assert opened(path)
    made.close()


def test_a_file_is_closed_with_the_object_that_has_it(path: Path) -> None:
    made = database(path)
    assert opened(path)
    del made
    gc.collect()
    assert not opened(path)


def test_another_process_that_ends_leaves_the_log_of_two_that_this_one_has(path: Path) -> None:
    first, second = database(path), database(path)
    subprocess.run([sys.executable, "-c", _LOOK, str(path)], check=True, stdout=subprocess.DEVNULL)
    log = path.with_name(f"{path.name}-wal")
    assert log.exists()
    for made in (first, second):
        with made.transaction() as connection:
            connection.execute("INSERT INTO a VALUES (2)")
    with first.use() as connection:
        assert connection.execute("SELECT count(*) FROM a").fetchone() == (4,)
    for made in (first, second):
        made.close()


def test_a_file_that_is_made_is_there_with_what_is_in_it_or_not_there(path: Path) -> None:
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
    assert not made.make(_insert), "what is there stays"
    again = database(path)
    with again.snapshot() as connection:
        assert connection.execute("SELECT b FROM a").fetchall() == [(7,), (1,)]
    again.close()


def test_what_a_file_that_was_moved_away_left_beside_it_is_no_part_of_a_new_one(path: Path) -> None:
    """Its process was killed: what it wrote last is in the log, and SQLite would go on there."""
    code = (
        "import os, sys; from pathlib import Path; "
        "from tests.base.machine.test_database import database; "
        "made = database(Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(path)], cwd=REPOSITORY, check=False)
    assert killed.returncode == -9
    assert path.with_name(f"{path.name}-wal").stat().st_size
    path.rename(path.with_name("damaged"))
    made = Database(path, Format(tables="CREATE TABLE IF NOT EXISTS a (b)", version=1), damaged="")
    assert made.make(_insert)
    with made.use() as connection:
        assert connection.execute("SELECT b FROM a").fetchall() == [(7,)]
    made.close()


def test_who_opens_a_file_first_that_was_made_does_not_wait_for_who_reads_it(path: Path) -> None:
    """A rollout that begins while a page looks at it: nothing is left to be changed in the file."""
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
