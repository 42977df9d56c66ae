"""Small databases: how long their files are open."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from localpuppet.machine.database import Database


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
    made = Database(path, tables="CREATE TABLE IF NOT EXISTS a (b)", version=1, damaged="")
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
