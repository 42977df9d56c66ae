"""The bus in another user's directory, which a process of that user opens for root."""

import asyncio
import os
import pwd
import shutil
import sqlite3
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.wiring.owned_bus import open_as_owner
from tests.rigs.following import Follower
from tests.rigs.node import processes_with

OWNER = pwd.getpwnam("daemon")
# It has one row, for which SQLite would have to count to the end.
_ENDLESS = """
CREATE VIEW endless AS
WITH RECURSIVE r(revision) AS (SELECT 1 UNION ALL SELECT 1 FROM r)
SELECT max(revision) AS revision FROM r;
"""
# Databases that have the form of a bus, and never end: place → what makes it of a good one.
HOSTILE = {
    "opening": """
DROP TABLE counter;
CREATE VIEW counter AS SELECT revision, 'x' AS boot FROM endless;
""",
    "listing": """
DROP TABLE entries;
CREATE VIEW entries AS
SELECT revision, '/a/b' AS key, x'31' AS value, NULL AS ttl, NULL AS expires FROM endless;
""",
    "writing": """
CREATE TRIGGER t AFTER UPDATE ON counter BEGIN
INSERT INTO removals SELECT revision, 'x' FROM endless;
END;
""",
}


@pytest.fixture
def path() -> Iterator[Path]:
    """A place in a directory of another user."""
    top = Path(tempfile.mkdtemp(prefix="lp-", dir="/tmp"))
    top.chmod(0o755)
    (top / "bus").mkdir(mode=0o700)
    os.chown(top / "bus", OWNER.pw_uid, OWNER.pw_gid)
    yield top / "bus" / "bus.sqlite"
    shutil.rmtree(top)


@asynccontextmanager
async def opened(path: Path, timeout: float = 10.0) -> AsyncGenerator[KeyValue, None]:
    kv = await open_as_owner(path, OWNER.pw_uid, timeout=timeout, search=os.environ["PATH"])
    try:
        yield kv
    finally:
        await kv.close()


async def test_what_root_writes_is_the_owner_s(path: Path) -> None:
    async with opened(path) as kv:
        revision = await kv.put("/a/b", b"\x00value")
        entry = await kv.get("/a/b")
        assert entry is not None
        assert (entry.value, entry.revision) == (b"\x00value", revision)
        follower = Follower(kv, "/a/")
        await follower.listed()
        await kv.put("/a/c", b"2")
        await follower.until_state({"/a/b": b"\x00value", "/a/c": b"2"})
        await follower.stop()
    assert {file.stat().st_uid for file in path.parent.iterdir()} == {OWNER.pw_uid}
    assert processes_with(str(path)) == []


async def test_the_process_can_do_little(path: Path) -> None:
    async with opened(path) as kv:
        await kv.put("/a/b", b"1")
        (process,) = processes_with(str(path))
        status = dict(
            line.split(":\t", 1) for line in (process / "status").read_text().splitlines()
        )
        assert status["Uid"].split() == [str(OWNER.pw_uid)] * 4
        assert status["Gid"].split() == [str(OWNER.pw_gid)] * 4
        assert status["Groups"].strip() == ""
        assert status["NoNewPrivs"] == "1"
        assert {int(status[name], 16) for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")} == {0}
        # What another process of the same user may look into would be that user's.
        assert (process / "mem").stat().st_uid == 0
        opened_files = [str(file.readlink()) for file in (process / "fd").iterdir()]
        ours = ("socket:", "pipe:", "anon_inode:", "/dev/null", str(path.parent))
        assert [file for file in opened_files if not file.startswith(ours)] == []
        assert os.getsid(int(process.name)) != os.getsid(0)


@pytest.mark.parametrize("place", HOSTILE)
async def test_a_database_without_an_end_costs_root_a_deadline(path: Path, place: str) -> None:
    async with opened(path) as kv:
        await kv.put("/a/b", b"1")
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.executescript(_ENDLESS + HOSTILE[place])
    async with opened(path, timeout=0.5) as kv:
        with pytest.raises(UnavailableError, match=f"^{path}: did not (answer|list all) within"):
            await (kv.put("/a/c", b"2") if place == "writing" else kv.list("/a/"))
        assert len(processes_with(str(path))) == 1
    assert processes_with(str(path)) == [], "it computes for nobody any more"


async def test_a_link_leads_no_further_than_its_owner(path: Path) -> None:
    target = path.parent.parent / "root's"
    path.symlink_to(target)
    async with opened(path) as kv:
        with pytest.raises(UnavailableError, match="cannot be opened"):
            await kv.list("/a/")
    assert not target.exists()


async def test_a_process_that_is_gone_is_an_outage(path: Path) -> None:
    async with opened(path) as kv:
        await kv.put("/a/b", b"1")
        (process,) = processes_with(str(path))
        os.kill(int(process.name), 9)
        while (process / "fd").exists() and list((process / "fd").iterdir()):
            await asyncio.sleep(0.01)
        with pytest.raises(UnavailableError, match=f"^{path}: "):
            await kv.get("/a/b")


async def test_others_of_this_machine_do_not_find_the_socket(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They could fill its queue, which refuses root then."""
    tmp_path.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with opened(path):
        (place,) = tmp_path.iterdir()
        assert (place.stat().st_uid, place.stat().st_mode & 0o777) == (os.geteuid(), 0o700)
        assert "@localpuppet" not in Path("/proc/net/unix").read_text()
    assert list(tmp_path.iterdir()) == []


async def test_what_keeps_it_from_starting_is_told(path: Path) -> None:
    with pytest.raises(InvalidInputError, match="user id 54321, which has no name"):
        await open_as_owner(path, 54321, timeout=1.0, search=os.environ["PATH"])
    with pytest.raises(UnavailableError, match="setpriv is not installed"):
        await open_as_owner(path, OWNER.pw_uid, timeout=1.0, search="/nonexistent")
