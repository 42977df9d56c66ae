"""The memory of ids: on disk before it answers, over processes, kills and damage; quotas."""

import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localpuppet.base.errors import StateError
from localpuppet.fleet.trust.seen import Quota, SeenIds
from tests.doubles.ports import FakeClock
from tests.rigs.node import PATIENCE, REPOSITORY

CLOCK = FakeClock()
NOW = int(CLOCK.now().timestamp())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "seen.sqlite"


@pytest.fixture
def seen(path: Path) -> Iterator[SeenIds]:
    opened = SeenIds(path, FakeClock())
    yield opened
    opened.close()


def test_an_id_is_new_once(seen: SeenIds, path: Path) -> None:
    assert seen.add("request", "a", NOW + 60)
    assert not seen.add("request", "a", NOW + 60)
    assert seen.add("other", "a", NOW + 60), "another owner"
    assert seen.add("request", "old", NOW - 10), "though it has expired already"
    assert not seen.add("request", "old", NOW - 10)
    seen.close()
    again = SeenIds(path, FakeClock())
    assert not again.add("request", "a", NOW + 60), "after a restart"
    again.close()


def test_the_memory_is_private(seen: SeenIds, path: Path) -> None:
    before = os.umask(0)
    try:
        seen.add("request", "a", NOW + 60)
    finally:
        os.umask(before)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    for file in path.parent.iterdir():
        assert file.stat().st_mode & 0o777 == 0o600, file


def test_ids_are_forgotten_when_they_expire_and_not_before(path: Path) -> None:
    clock = FakeClock()
    seen = SeenIds(path, clock, always=1)
    seen.add("request", "short", NOW + 60)
    seen.add("request", "long", NOW + 600)
    clock.advance(60)
    seen.add("request", "b", NOW + 600)
    assert not seen.add("request", "short", NOW + 60), "the last second counts"
    clock.advance(1)
    seen.add("request", "c", NOW + 600)
    assert not seen.add("request", "long", NOW + 600)
    seen.close()
    with sqlite3.connect(path) as connection:
        kept = {row[0] for row in connection.execute("SELECT id FROM seen")}
    connection.close()
    assert kept == {"long", "b", "c"}


def test_a_full_memory_accepts_no_new_id(path: Path) -> None:
    clock = FakeClock()
    seen = SeenIds(path, clock, limit=3)
    for name in "abc":
        assert seen.add("request", name, NOW + 60)
    for _ in range(2):
        with pytest.raises(StateError, match="3 ids are stored already: localpuppet rejects"):
            seen.add("request", "d", NOW + 60)
    assert not seen.add("request", "a", NOW + 60), "a known id stays known"
    clock.advance(61)
    assert seen.add("request", "d", NOW + 200), "and there is room again when some expired"
    seen.close()


def test_each_caller_has_a_quota(path: Path) -> None:
    clock = FakeClock()
    seen = SeenIds(path, clock, limit=100, each=10)
    for number in range(10):
        assert seen.add("mallory", str(number), NOW + 60)
    with pytest.raises(StateError, match=r"10 ids of mallory are stored .* further ids of mallory"):
        seen.add("mallory", "10", NOW + 60)
    assert seen.add("alice", "1", NOW + 60)
    clock.advance(61)
    assert seen.add("mallory", "10", NOW + 200)
    seen.close()


def test_in_a_full_memory_owners_with_few_ids_get_room(path: Path) -> None:
    seen = SeenIds(path, FakeClock(), limit=10, each=5)
    for owner in ("m1", "m2"):
        for number in range(5):
            assert seen.add(owner, str(number), NOW + 60)
    assert seen.add("alice", "1", NOW + 60)
    assert seen.add("bob", "1", NOW + 60)
    with pytest.raises(StateError, match="12 ids are stored already: localpuppet rejects further"):
        seen.add("carol", "1", NOW + 60)
    seen.close()


def test_after_a_clock_is_set_back_the_newest_ids_stay_known(path: Path) -> None:
    clock = FakeClock()
    seen = SeenIds(path, clock, always=2)
    assert seen.add("request", "a", NOW + 60)
    clock.advance(86400)
    assert seen.add("request", "b", NOW + 86400)
    clock.advance(-86400)
    assert not seen.add("request", "a", NOW + 60)
    seen.close()


def test_expired_ids_that_are_kept_take_no_room(path: Path) -> None:
    clock = FakeClock()
    seen = SeenIds(path, clock, limit=3, always=3)
    for name in "abc":
        assert seen.add("request", name, NOW + 60)
    clock.advance(61)
    for name in "def":
        assert seen.add("request", name, NOW + 600)
    with pytest.raises(StateError, match="3 ids are stored already"):
        seen.add("request", "g", NOW + 600)
    seen.close()


def _add_all(path: Path, count: int, results: "multiprocessing.Queue[list[int]]") -> None:
    seen = SeenIds(path, FakeClock())
    results.put([n for n in range(count) if seen.add("request", str(n), NOW + 60)])
    seen.close()


def test_an_id_is_new_for_only_a_single_process(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[list[int]] = context.Queue()
    workers = [context.Process(target=_add_all, args=(path, 80, results)) for _ in range(2)]
    for worker in workers:
        worker.start()
    told = sorted(number for _ in workers for number in results.get(timeout=PATIENCE))
    for worker in workers:
        worker.join(PATIENCE)
    results.close()
    results.join_thread()
    assert told == list(range(80))


ENDLESS = """
import sys
from pathlib import Path
from localpuppet.fleet.trust.seen import SeenIds
from tests.doubles.ports import FakeClock
seen = SeenIds(Path(sys.argv[1]), FakeClock())
number = 0
while True:
    assert seen.add("request", str(number), 2**40)
    print(number, flush=True)
    number += 1
"""


def test_reported_ids_survive_kill_9(path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(REPOSITORY)},
    ) as process:
        assert process.stdout is not None
        told = [int(process.stdout.readline()) for _ in range(20)]
        process.send_signal(signal.SIGKILL)
        told += [int(line) for line in process.stdout.read().split("\n")[:-1]]
    seen = SeenIds(path, FakeClock())
    assert [number for number in told if seen.add("request", str(number), 2**40)] == []
    seen.close()


@pytest.mark.parametrize("damage", [b"not a database" * 400, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_file_accepts_no_id(path: Path, damage: bytes) -> None:
    path.parent.mkdir(mode=0o700)
    path.write_bytes(damage)
    seen = SeenIds(path, FakeClock())
    for _ in range(2):
        with pytest.raises(StateError, match=r"seen\.sqlite: .*(damaged|cannot be used)") as caught:
            seen.add("request", "a", NOW + 60)
        assert "\n" not in str(caught.value)
    assert path.read_bytes() == damage, "the damaged file stays for the operator"
    path.rename(path.with_suffix(".bad"))
    assert seen.add("request", "a", NOW + 60)
    seen.close()


def test_a_file_that_is_moved_away_is_replaced_by_a_new_file(seen: SeenIds, path: Path) -> None:
    seen.add("request", "a", NOW + 60)
    for file in list(path.parent.iterdir()):
        file.rename(path.parent.parent / file.name)
    assert seen.add("request", "b", NOW + 60)
    assert path.exists()


def test_a_file_of_a_later_version_accepts_no_id(seen: SeenIds, path: Path) -> None:
    seen.add("request", "a", NOW + 60)
    seen.close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 7")
    connection.close()
    with pytest.raises(StateError, match="another version"):
        seen.add("request", "b", NOW + 60)


def test_a_symlink_or_an_unwritable_place_accepts_no_id(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    path.symlink_to(path.parent.parent / "elsewhere")
    with pytest.raises(StateError):
        SeenIds(path, FakeClock()).add("request", "a", NOW + 60)
    assert not (path.parent.parent / "elsewhere").exists()
    (path.parent.parent / "file").write_text("a file where the directory should be")
    with pytest.raises(StateError):
        SeenIds(path.parent.parent / "file" / "seen.sqlite", FakeClock()).add("r", "a", NOW + 60)


def test_a_single_owner_fills_the_shared_part_and_others_get_the_reserve() -> None:
    quota = Quota(shared=10, reserve=4, few=2)
    assert quota.has_room(own=9, total=9)
    assert not quota.has_room(own=10, total=10)
    assert quota.has_room(own=0, total=10)
    assert quota.has_room(own=1, total=11)
    assert not quota.has_room(own=2, total=12)
    assert not quota.has_room(own=0, total=14)
    separate = Quota(shared=10, reserve=4, few=2, each=3)
    assert separate.has_room(own=2, total=2)
    assert not separate.has_room(own=3, total=3)


@settings(deadline=None)
@given(st.lists(st.sampled_from("abcd")))
def test_after_a_flood_each_owner_gets_a_place_in_any_order(owners: list[str]) -> None:
    quota = Quota(shared=10, reserve=4, few=2)
    taken: Counter[str] = Counter()
    for owner in owners:
        if quota.has_room(own=taken[owner], total=taken.total()):
            taken[owner] += 1
    assert taken.total() <= 14
    newcomer = quota.has_room(own=0, total=taken.total())
    # Each owner gets at most two places of the reserve: after one flood, each gets one.
    assert newcomer or len(taken) > 2
