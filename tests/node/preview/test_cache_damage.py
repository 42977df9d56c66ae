"""If a cache is damaged or poisoned, a preview compiles again and never shows a wrong result."""

import os
import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.preview import cache_file
from localpuppet.node.preview.cache import PreviewCache
from localpuppet.node.puppet.catalog import CatalogResource
from tests.doubles.compile_engine import ProgramError, RecordedRelease, resource, write_capture
from tests.node.preview.rig import PreviewRig, write_release

NODES = 6
_PAIRS = {
    "blobs": ("digest", "data"),
    "items": ("id", "data"),
    "catalogs": ("digest", "own"),
    "entries": ("id", "catalog"),
}


def program(view: RecordedRelease) -> Iterator[CatalogResource]:
    text = view.read("site.pp")
    if view.request.node == "n5.example.com" and view.lookup("data.yaml", "k") == 1:
        raise ProgramError("compiles with the change only")
    for number in range(12):
        yield resource("File", f"/etc/{number}", content=text, mode="0644")
    yield resource("Notify", view.request.node, message=view.lookup("data.yaml", "k"))
    yield resource("Notify", "role", message=view.fact("role"))


@pytest.fixture
def rig(tmp_path: Path) -> PreviewRig:
    rig = PreviewRig(tmp_path, program)
    for number in range(NODES):
        write_capture(rig.nodes, f"n{number}.example.com", {"role": f"r{number % 2}"})
    base = write_release(tmp_path / "base", {"site.pp": "one", "data.yaml": "k: 1\n"})
    head = write_release(tmp_path / "head", {"site.pp": "one", "data.yaml": "k: 2\n"})
    rig.preview(base, head)
    return rig


def file_of(rig: PreviewRig) -> Path:
    (path,) = (rig.directory / "cache").glob("*.db")
    return path


def test_flipped_bytes_cause_no_wrong_result(rig: PreviewRig) -> None:
    expected, path = rig.shown(), file_of(rig)
    whole = path.read_bytes()
    chance = random.Random(28)  # noqa: S311
    compiled = 0
    for _ in range(24):
        data = bytearray(whole)
        for _ in range(chance.choice([1, 1, 20])):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        assert rig.shown() == expected
        compiled += len(rig.engine.compiled)
    assert compiled > 0


def test_a_truncated_file_causes_no_wrong_result(rig: PreviewRig) -> None:
    expected, path = rig.shown(), file_of(rig)
    whole = path.read_bytes()
    chance = random.Random(28)  # noqa: S311
    for size in (0, 1, 100, 4096, *(chance.randrange(len(whole)) for _ in range(8))):
        path.write_bytes(whole[:size])
        assert rig.shown() == expected
    path.write_text("no database\n" * 1000)
    assert rig.shown() == expected


@pytest.mark.parametrize("table", _PAIRS)
def test_swapped_rows_cause_no_wrong_result(rig: PreviewRig, table: str) -> None:
    """Two valid rows are swapped."""
    expected, path = rig.shown(), file_of(rig)
    whole = path.read_bytes()
    key, value = _PAIRS[table]
    with closing(sqlite3.connect(path)) as connection, connection:
        rows = connection.execute(f"SELECT {key}, {value} FROM {table}").fetchall()  # noqa: S608
    assert len(rows) > 3
    chance = random.Random(28)  # noqa: S311
    for _ in range(10):
        path.write_bytes(whole)
        (one, first), (other, second) = chance.sample(rows, 2)
        with closing(sqlite3.connect(path)) as connection, connection:
            statement = f"UPDATE {table} SET {value} = ? WHERE {key} = ?"  # noqa: S608
            connection.executemany(statement, [(second, one), (first, other)])
        assert rig.shown() == expected


@pytest.mark.parametrize("column", ["node", "source", "catalog", "body"])
def test_an_entry_with_a_column_of_another_entry_is_not_used(rig: PreviewRig, column: str) -> None:
    expected = rig.shown()
    with closing(sqlite3.connect(file_of(rig))) as connection, connection:
        rows = connection.execute(f"SELECT id, {column} FROM entries").fetchall()  # noqa: S608
        for number, own in rows:
            others = [value for _, value in rows if value != own]
            if others:
                statement = f"UPDATE entries SET {column} = ? WHERE id = ?"  # noqa: S608
                connection.execute(statement, (others[0], number))
    assert rig.shown() == expected


def test_missing_rows_cause_no_wrong_result(rig: PreviewRig) -> None:
    expected = rig.shown()
    for table in (*_PAIRS, "trees"):
        with closing(sqlite3.connect(file_of(rig))) as connection, connection:
            connection.execute(f"DELETE FROM {table}")  # noqa: S608
        assert rig.shown() == expected


def test_data_above_a_limit_is_made_anew(rig: PreviewRig, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = rig.shown()
    assert rig.engine.compiled == []
    monkeypatch.setattr(cache_file, "MAX_CACHED", 64)
    assert rig.shown() == expected
    assert len({*rig.engine.compiled}) == NODES


def test_a_cache_that_another_user_could_have_written_is_rejected(rig: PreviewRig) -> None:
    cache, file = rig.directory / "cache", file_of(rig)
    for path, mode in ((cache, 0o777), (file, 0o666), (file, 0o660)):
        before = path.stat().st_mode
        path.chmod(mode)
        with pytest.raises(InvalidInputError, match="another user could have written this cache"):
            rig.cache()
        path.chmod(before)
    rig.cache().close()
    moved = cache.rename(rig.directory / "elsewhere")
    cache.symlink_to(moved)
    with pytest.raises(InvalidInputError, match="is a link"):
        rig.cache()
    os.chown(moved, 12345, 12345)
    with pytest.raises(InvalidInputError, match="owner 12345"):
        PreviewCache(moved, platform="test")


def test_a_preview_on_another_platform_uses_no_stored_result(rig: PreviewRig) -> None:
    other = PreviewCache(rig.directory / "cache", platform="another Puppet")
    rig.preview(rig.directory / "base", rig.directory / "head", cache=other)
    other.close()
    assert len(rig.engine.compiled) == NODES * 2


def test_above_its_limit_the_cache_removes_the_oldest_entries(rig: PreviewRig) -> None:
    expected = rig.shown()
    small = rig.cache(limit=120 * 1024)
    for number in range(30):
        base = write_release(
            rig.directory / "many", {"site.pp": f"{number}\n" * 500, "data.yaml": "k: 1\n"}
        )
        rig.preview(base, base, cache=small)
    small.close()
    assert file_of(rig).stat().st_size < 1024 * 1024
    assert rig.shown() == expected
    assert rig.shown() == expected
    assert rig.engine.compiled == []
    shutil.rmtree(rig.directory / "cache")
