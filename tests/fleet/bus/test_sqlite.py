"""Features of SQLite: the file, its place, neighbours, damage and clock; other processes."""

import asyncio
import os
import pwd
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.fleet.bus.key_value import KeyListing, KeyRemoval
from localpuppet.fleet.bus.sqlite_bus import Doorbell, open_sqlite
from localpuppet.fleet.bus.sqlite_file import MAX_REMOVALS, SCHEMA, SqliteFile, other_owner
from tests.rigs.following import Follower
from tests.rigs.waiting import PATIENCE

WRITER = """
import asyncio, sys
from pathlib import Path
from localpuppet.fleet.bus.sqlite_bus import open_sqlite

async def main():
    store = await open_sqlite(Path(sys.argv[1]), timeout=300.0)
    for line in sys.stdin:
        print(await store.put(line.strip(), b"x" * 5000), flush=True)
    await store.close()

asyncio.run(main())
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "bus.sqlite"


def writer(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )


def make_file(path: Path) -> None:
    SqliteFile(path).close()


async def test_files_are_private(path: Path) -> None:
    store = await open_sqlite(path, timeout=PATIENCE)
    await store.put("/a", b"")
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == dict.fromkeys(("bus.sqlite", "bus.sqlite-wal", "bus.sqlite-shm"), 0o600)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    await store.close()


async def test_a_directory_that_others_can_write_is_refused(path: Path) -> None:
    path.parent.mkdir()
    path.parent.chmod(0o777)
    with pytest.raises(InvalidInputError, match="can be written by others"):
        await open_sqlite(path, timeout=PATIENCE)


def no_database(path: Path) -> None:
    path.write_bytes(b"not a database, but long enough to look like one" * 100)


def of_another_program(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE theirs (x)")


def newer(path: Path) -> None:
    make_file(path)
    with closing(sqlite3.connect(path)) as other:
        other.execute(f"PRAGMA user_version = {SCHEMA + 1}")


def damaged(path: Path) -> None:
    file = SqliteFile(path)
    for i in range(200):
        file.write(f"/a/{i}", os.urandom(1000), ttl=None, expected=None)
    file.close()
    with path.open("r+b") as rest:
        rest.seek(4096)
        rest.write(os.urandom(path.stat().st_size - 4096))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (no_database, "is not a SQLite database"),
        (of_another_program, "is a database of another program"),
        (newer, f"has schema {SCHEMA + 1}"),
        (damaged, "is damaged"),
    ],
)
async def test_other_files_are_kept(path: Path, make: Callable[[Path], None], reason: str) -> None:
    path.parent.mkdir(mode=0o700)
    make(path)
    before = path.read_bytes()
    with pytest.raises(UnavailableError, match=reason) as caught:
        await open_sqlite(path, timeout=0.2)
    assert str(path.parent) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before


async def test_a_path_that_cannot_be_written_is_an_error() -> None:
    with pytest.raises(UnavailableError, match="/sys/"):
        await open_sqlite(Path("/sys/localpuppet/bus.sqlite"), timeout=0.2)


async def test_a_locked_file_is_an_error_at_the_deadline(path: Path) -> None:
    store, patient = await open_sqlite(path, timeout=0.2), await open_sqlite(path, timeout=PATIENCE)
    revision = await patient.put("/a/b", b"1")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UnavailableError, match=r"locked by another process for 0\.2 s"):
            await store.put("/a/b", b"2")
        entry = await patient.get("/a/b")  # readers do not wait for writers
        assert entry is not None
        assert entry.revision == revision
        waiting = asyncio.create_task(patient.put("/a/b", b"3"))
        await asyncio.sleep(0)
        other.execute("ROLLBACK")
    assert await waiting > revision
    await store.close()
    await patient.close()


async def test_a_write_of_another_process_wakes_a_watcher(path: Path) -> None:
    store = await open_sqlite(path, timeout=PATIENCE)
    follower = Follower(store, "/a/")
    await follower.listed()
    with writer(path) as process:
        assert process.stdin is not None
        for i in range(20):
            process.stdin.write(f"/a/{i}\n")
        process.stdin.close()
        await follower.until(lambda: len(follower.state) == 20)
    await follower.stop()
    await store.close()


async def test_acknowledged_writes_survive_a_kill_of_the_writer(path: Path) -> None:
    with writer(path) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("".join(f"/a/{i}\n" for i in range(500)))  # fits into the pipe
        process.stdin.flush()
        acknowledged = [int(process.stdout.readline()) for _ in range(50)]
        process.kill()
    store = await open_sqlite(path, timeout=PATIENCE)
    assert {entry.revision for entry in (await store.list("/a/")).entries} >= set(acknowledged)
    await store.close()


async def test_a_writer_that_died_before_it_rang(path: Path) -> None:
    store = await open_sqlite(path, timeout=PATIENCE)
    follower = Follower(store, "/a/")
    await follower.listed()
    quiet = SqliteFile(path)  # commits, and rings no bell
    quiet.write("/a/b", b"1", ttl=None, expected=None)
    await follower.until_state({"/a/b": b"1"})
    quiet.close()
    await follower.stop()
    await store.close()


async def test_an_expiry_is_published_as_a_removal(path: Path) -> None:
    store = await open_sqlite(path, timeout=PATIENCE)
    follower = Follower(store, "/a/")
    await follower.listed()
    await store.put("/a/b", b"1", ttl=0.1)
    await follower.until(lambda: [gone.key for gone in follower.gone] == ["/a/b"])
    await follower.stop()
    await store.close()


@pytest.mark.parametrize("how", ["removed", "moved"])
async def test_the_doorbell_works_in_a_directory_created_again(path: Path, how: str) -> None:
    make_file(path)
    bell = Doorbell(path)
    if how == "removed":
        shutil.rmtree(path.parent)
    else:
        path.parent.rename(path.parent.with_name("old"))
    await bell.wait(0, seconds=60.0)
    make_file(path)
    await bell.wait(bell.rings, seconds=60.0)  # it looks for its directory
    rings = bell.rings
    bell.ring()
    await bell.wait(rings, seconds=60.0)
    assert bell.rings > rings
    bell.close()


async def test_more_removals_than_are_kept_bring_a_listing(path: Path) -> None:
    file = SqliteFile(path)
    seen = file.write("/a/stays", b"", ttl=None, expected=None)
    assert seen is not None
    file.close()
    with closing(sqlite3.connect(path)) as other, other:
        other.executemany(
            "INSERT INTO removals (revision, key) VALUES (?, ?)",
            ((seen + i, f"/a/{i}") for i in range(1, MAX_REMOVALS + 1)),
        )
        other.execute("UPDATE counter SET revision = ?", (seen + MAX_REMOVALS,))
    store = await open_sqlite(path, timeout=PATIENCE)
    kept = Follower(store, "/a/", seen)
    await kept.until(lambda: len(kept.changes) == MAX_REMOVALS)
    assert all(isinstance(change, KeyRemoval) for change in kept.changes)
    await kept.stop()
    assert await store.remove_if_revision("/a/one", await store.put("/a/one", b""))
    late = Follower(store, "/a/", seen)
    assert [entry.key for entry in (await late.listed()).entries] == ["/a/stays"]
    await late.stop()
    await store.close()


async def test_no_writer_outruns_the_revisions_of_a_later_file(path: Path) -> None:
    """Otherwise a watcher of the earlier file would miss what the later one has at its start."""
    begun = time.time()
    store = await open_sqlite(path, timeout=PATIENCE)
    revision = await store.put("/a", b"1")
    await store.close()
    assert begun * 1e6 < revision < time.time() * 1e6 + 2


async def test_a_file_that_was_replaced(path: Path) -> None:
    store = await open_sqlite(path, timeout=PATIENCE)
    await store.put("/a/old", b"")
    follower = Follower(store, "/a/")
    seen = (await follower.listed()).revision
    for file in list(path.parent.iterdir()):
        file.unlink()
    await store.put("/a/new", b"")
    assert [entry.key for entry in (await store.list("/a/")).entries] == ["/a/new"]
    assert "was replaced by another file" in str(await follower.failed())
    again = Follower(store, "/a/", seen)
    await again.until_state({"/a/new": b""})
    assert isinstance(again.changes[0], KeyListing)
    assert again.revision > seen
    await again.stop()
    await store.close()


async def test_a_copy_that_was_put_back_is_another_store(path: Path, tmp_path: Path) -> None:
    store = await open_sqlite(path, timeout=PATIENCE)
    await store.put("/a/old", b"")
    first = await store.born("/a/")
    await store.close()
    shutil.copy2(path, tmp_path / "backup")
    store = await open_sqlite(path, timeout=PATIENCE)
    assert await store.born("/a/") == first, "a restart changes nothing"
    seen = await store.put("/a/new", b"")
    await store.close()
    path.unlink()
    shutil.copy2(tmp_path / "backup", path)
    store = await open_sqlite(path, timeout=PATIENCE)
    assert await store.born("/a/") > first
    assert await store.put("/a/other", b"") > seen
    follower = Follower(store, "/a/", seen)
    assert [entry.key for entry in (await follower.listed()).entries] == ["/a/old", "/a/other"]
    await follower.stop()
    await store.close()


async def test_each_ttl_restarts_after_a_reboot(path: Path) -> None:
    file = SqliteFile(path)
    file.write("/a/b", b"", ttl=3600.0, expected=None)
    file.close()
    with closing(sqlite3.connect(path)) as other, other:
        # Written in an earlier, long boot: its time does not count in this boot.
        other.execute("UPDATE entries SET expires = 1")
        other.execute("UPDATE counter SET boot = 'another'")
    again = SqliteFile(path)
    assert again.get("/a/b") is not None
    again.close()
    make_file(path)
    with closing(sqlite3.connect(path)) as other:
        ((expires,),) = other.execute("SELECT expires FROM entries").fetchall()
    assert expires > 3600.0


OTHER = pwd.getpwnam("daemon").pw_uid
# Alternates a file and a link at a name, as fast as it can, in a separate process of another user.
RACER = """
import os, sys
name, target = sys.argv[1:]
print("racing", flush=True)
while True:
    for make in (lambda: os.close(os.open(name, os.O_CREAT)), lambda: os.symlink(target, name)):
        make()
        os.unlink(name)
"""
TRIES = 300


def given(path: Path) -> Path:
    path.mkdir(parents=True)
    os.chown(path, OTHER, OTHER)
    return path


def test_root_opens_a_database_in_its_own_directories(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "link").symlink_to("own/../own")
    for directory in (tmp_path, tmp_path / "own", tmp_path / "link", tmp_path / "not/there"):
        assert other_owner(directory) is None
    SqliteFile(tmp_path / "link" / "bus.sqlite").close()
    assert (tmp_path / "own" / "bus.sqlite").exists()


@pytest.mark.parametrize("below", ["", "own", "own/not/there"])
def test_root_opens_no_database_below_another_user_s_directory(tmp_path: Path, below: str) -> None:
    directory = given(tmp_path / "theirs") / below
    (tmp_path / "theirs" / "own").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(directory)
    for name in (directory, tmp_path / "link"):
        assert other_owner(name) == OTHER
        with pytest.raises(InvalidInputError, match=f"user id {OTHER} can replace this file"):
            SqliteFile(name / "bus.sqlite")
    assert [path.name for path in (tmp_path / "theirs").rglob("*")] == ["own"]


def test_a_way_through_another_user_s_link_is_theirs(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    link = tmp_path / "link"
    link.symlink_to("own")
    os.chown(link, OTHER, OTHER, follow_symlinks=False)
    assert other_owner(link) == OTHER
    # Also a path that leads there over a link of root.
    (tmp_path / "second").symlink_to(link)
    assert other_owner(tmp_path / "second") == OTHER


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(UnavailableError, match="too many symlinks"):
        other_owner(tmp_path / "a")


@pytest.mark.parametrize(("mode", "refused"), [(0o777, True), (0o775, True), (0o1777, False)])
def test_a_directory_above_that_others_can_write(tmp_path: Path, mode: int, refused: bool) -> None:
    (tmp_path / "open" / "own").mkdir(parents=True)
    (tmp_path / "open").chmod(mode)
    if not refused:
        assert other_owner(tmp_path / "open" / "own") is None
        return
    with pytest.raises(InvalidInputError, match=f"open: can be written by others .mode {mode:04o}"):
        other_owner(tmp_path / "open" / "own")


def test_the_user_behind_sudo_is_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = given(tmp_path / "theirs")
    monkeypatch.setenv("SUDO_UID", str(OTHER))
    assert other_owner(theirs) is None


def test_a_file_that_was_left_in_a_directory_of_root_s(tmp_path: Path) -> None:
    file = tmp_path / "bus.sqlite"
    SqliteFile(file).close()
    os.chown(file, OTHER, OTHER)
    with pytest.raises(InvalidInputError, match=f"belongs to user id {OTHER}"):
        SqliteFile(file)


@pytest.fixture
def entered() -> Iterator[Path]:
    """A directory that other users may enter; pytest's own are root's alone."""
    top = Path(tempfile.mkdtemp(prefix="lp-", dir="/tmp"))
    top.chmod(0o755)
    yield top
    shutil.rmtree(top)


def test_no_race_of_file_and_link_has_root_make_a_database(entered: Path) -> None:
    name = given(entered / "theirs") / "bus.sqlite"
    target = entered / "database"
    with subprocess.Popen(
        [sys.executable, "-c", RACER, str(name), str(target)],
        user=OTHER,
        group=OTHER,
        stdout=subprocess.PIPE,
    ) as racer:
        assert racer.stdout is not None
        assert racer.stdout.readline() == b"racing\n"
        for _ in range(TRIES):
            with pytest.raises(InvalidInputError, match="root does not open it"):
                SqliteFile(name)
        assert racer.poll() is None
        racer.kill()
    assert not target.exists()
