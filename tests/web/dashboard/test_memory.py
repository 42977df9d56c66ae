"""The memory of the fleet, in a real file."""

import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest

from localpuppet.base.errors import BusyError, StateError
from localpuppet.base.machine.flock import Flock
from localpuppet.fleet.history.history_records import DAY
from localpuppet.fleet.inventory.presence import HoldView
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.web.dashboard.audit_table import NodeAuditRecord, listed
from localpuppet.web.dashboard.list_query import ListQuery
from localpuppet.web.dashboard.memory import DashboardStore, MemoryLimits
from localpuppet.web.dashboard.run_queries import between, of_id
from localpuppet.web.dashboard.run_table import HOUR, KEPT, RunRow
from tests.fleet.make import a_decision, a_row
from tests.web.dashboard.one_memory import NOW
from tests.web.make import MOTD, keep, kept, run_id, summary

HOLD = HoldView(owner="alice", reason="x", until=None)
ROW = a_row("a.example.com", outcome=Kind.FAILED, finished_at=NOW, holds=(HOLD,), roles=("web",))


def ended(at: float, node: str = "a", kind: Kind = Kind.CHANGED) -> RunRow:
    return summary(node, at, outcome=kind, release="web/tags/r1", cause="", seconds=None)


def audited(memory: DashboardStore) -> Sequence[NodeAuditRecord]:
    return memory.read(listed, ListQuery().whole, limit=99).rows


class Clock:
    seconds = NOW

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def now() -> Clock:
    return Clock()


@pytest.fixture
def memory(tmp_path: Path, now: Clock) -> DashboardStore:
    return DashboardStore(tmp_path / "web" / "fleet.sqlite", now=now)


def failures(memory: DashboardStore) -> dict[str, tuple[float, float]]:
    """Return when each failure cause was first and last seen."""
    rows = memory.read(
        lambda connection: connection.execute(
            "SELECT failure_cause, first, last FROM failures"
        ).fetchall()
    )
    return {cause: (first, last) for cause, first, last in rows}


def test_written_rows_survive_a_restart(memory: DashboardStore, tmp_path: Path, now: Clock) -> None:
    file = tmp_path / "web" / "fleet.sqlite"
    keep(memory, ROW, a_row("b"), last_updated=NOW)
    memory.write_history([ended(NOW)], ())
    keep(memory, gone=["b"])
    assert file.stat().st_mode & 0o777 == 0o600
    # Not closed: as after a kill -9.
    again = DashboardStore(file, now=now)
    assert (kept(again), again.last_updated()) == ([ROW], NOW)
    assert again.read(of_id, run_id(NOW), "a") == ended(NOW)


def test_reading_takes_no_disk_space(memory: DashboardStore, tmp_path: Path, now: Clock) -> None:
    file = tmp_path / "web" / "fleet.sqlite"
    keep(memory, ROW)
    memory.write_history([ended(NOW)], ())
    memory.close()
    again = DashboardStore(file, now=now)
    assert (again.begin(), kept(again), again.runs("a", limit=9)) == (False, [ROW], [ended(NOW)])
    assert file.with_name("fleet.sqlite-wal").stat().st_size == 0


def test_runs_are_found_by_their_ids_alone(memory: DashboardStore) -> None:
    a, b, c = ended(NOW, node="a"), ended(NOW - 2, node="b"), ended(NOW - 1, node="c")
    keep(memory, *(a_row(name) for name in "abc"))
    memory.write_history([c, a, b], ())
    first, last = run_id(NOW - 2), run_id(NOW)
    assert memory.read(between, first, last, limit=9) == [a, c, b]
    assert memory.read(between, first, last, limit=2) == [a, c]
    assert memory.read(between, first, first, limit=9) == [b]
    assert memory.read(between, run_id(NOW - 4), run_id(NOW - 3), limit=9) == []


def test_a_run_is_kept_once_with_its_first_outcome(memory: DashboardStore) -> None:
    one = ended(NOW)
    for kind in (Kind.CHANGED, Kind.FAILED):
        memory.write_history([replace(one, outcome=kind)], ())
    assert memory.runs("a", limit=9) == [one]
    assert memory.hours(NOW) == {(int(NOW // HOUR), Kind.CHANGED): 1}


def test_a_summary_that_corrects_a_result_corrects_the_chart(memory: DashboardStore) -> None:
    wrong = replace(ended(NOW), outcome=Kind.INTERRUPTED)
    memory.write_history([wrong, ended(NOW - 1)], ())
    assert set(memory.hours(NOW)) == {
        (int(NOW // HOUR), kind) for kind in (Kind.INTERRUPTED, Kind.CHANGED)
    }
    memory.write_history([replace(ended(NOW), seconds=5)], ())
    assert memory.hours(NOW) == {(int(NOW // HOUR), Kind.CHANGED): 2}


def test_old_runs_are_removed_and_not_added_again(tmp_path: Path, now: Clock) -> None:
    memory = DashboardStore(tmp_path / "fleet.sqlite", now=now, limits=MemoryLimits(together=2))
    old = [ended(NOW - number) for number in range(3)]
    memory.write_history([*old, ended(NOW, node="b")], ())
    now.seconds += KEPT + DAY
    memory.write_history([ended(NOW), ended(now.seconds)], ())
    assert [memory.prune() for _ in range(3)] == [True, False, False]
    assert memory.runs("a", limit=9) == [ended(now.seconds)]
    assert memory.runs("b", limit=9) == []
    assert list(memory.hours(0).values()) == [1]


def test_a_clock_wrong_for_an_hour_removes_only_a_part(memory: DashboardStore, now: Clock) -> None:
    ends = [replace(ended(NOW - day * DAY), failure_cause=f"{day}") for day in range(20)]
    memory.write_history(ends, ())
    now.seconds += 365 * DAY
    for _ in range(6):
        assert not memory.prune()
    now.seconds = NOW
    assert memory.runs("a", limit=99) == [replace(one, failure_cause="") for one in ends[:14]]
    assert len(failures(memory)) == len(memory.hours(0)) == 14


def test_a_run_of_the_future_is_not_kept(memory: DashboardStore) -> None:
    lies = [replace(ended(NOW), run=run_id(NOW + days * DAY)) for days in (2, 50 * 365)]
    memory.write_history([*lies, ended(NOW), ended(NOW + HOUR)], ())
    assert memory.runs("a", limit=9) == [ended(NOW + HOUR), ended(NOW)]


def test_the_oldest_runs_are_removed_if_space_is_short(tmp_path: Path, now: Clock) -> None:
    memory = DashboardStore(
        tmp_path / "fleet.sqlite", now=now, limits=MemoryLimits(size=200_000, together=100)
    )
    for day in range(30, -1, -1):
        at = NOW - day * DAY
        keep(memory, ROW)
        memory.write_history([ended(at + number, f"n{number:03}") for number in range(300)], ())
    memory.close()
    assert (tmp_path / "fleet.sqlite").stat().st_size < 400_000
    runs = memory.runs("n299", limit=99)
    assert [one.finished_at for one in runs] == [NOW + 299 - day * DAY for day in range(len(runs))]
    assert 1 < len(runs) < 31
    assert sum(memory.hours(0).values()) == 31 * 300, "charts keep their counts"
    assert kept(memory) == [ROW]


def test_resources_and_requests_count_for_the_limit_and_survive(tmp_path: Path, now: Clock) -> None:
    file, limits = tmp_path / "fleet.sqlite", MemoryLimits(size=400_000, together=100)
    memory = DashboardStore(file, now=now, limits=limits)
    for day in range(30, -1, -1):
        at = NOW - day * DAY
        memory.write_history(
            [
                summary(f"n{number:03}", at + number, resources=(MOTD,) * 20)
                for number in range(100)
            ],
            [("n000", [a_decision(at)])],
            taken={day: -day},
        )
    # Not closed: as after a kill -9.
    memory = DashboardStore(file, now=now, limits=limits)
    runs = memory.runs("n099", limit=99)
    assert 1 < len(runs) < 20
    assert all(len(run.resources) == 20 for run in runs)
    assert memory.taken(range(40)) == {day: -day for day in range(31)}
    assert memory.taken([7, 99]) == {7: -7}
    assert len(audited(memory)) == 31
    now.seconds += 88 * DAY
    for _ in range(31):  # a day each
        memory.prune()
    assert len(audited(memory)) == 3
    # Runs of the future, and from before the time that is kept, are ignored.
    memory.write_history([summary("n1", now.seconds + 3 * DAY), summary("n1", NOW - 9 * DAY)], [])
    assert memory.runs("n1", limit=9) == []


def test_a_file_releases_unused_pages(tmp_path: Path, now: Clock) -> None:
    file = tmp_path / "fleet.sqlite"
    memory = DashboardStore(file, now=now, limits=MemoryLimits(free_pages=5, released_pages=20))
    memory.write_history([ended(NOW, f"{number}" * 40) for number in range(4000)], ())
    memory.close()
    pages = file.stat().st_size // 4096
    now.seconds += KEPT + DAY
    turns = 0
    while memory.prune():
        turns += 1
    memory.close()
    assert pages / 20 - 2 < turns < pages / 20 + 2
    assert file.stat().st_size < 140_000


def earlier(tmp_path: Path) -> Path:
    """Return where a file of an earlier version is."""
    path = tmp_path / "web" / "fleet.sqlite"
    path.parent.mkdir(mode=0o700)
    with sqlite3.connect(path) as connection:
        connection.executescript("CREATE TABLE runs (node TEXT); PRAGMA user_version = 1")
    connection.close()
    return path


def test_a_database_of_an_earlier_version_is_replaced(tmp_path: Path, now: Clock) -> None:
    path = earlier(tmp_path)
    memory = DashboardStore(path, now=now)
    with pytest.raises(StateError, match=r"another version.*move the file away"):
        kept(memory)
    assert [memory.begin(), memory.begin()] == [True, False]
    keep(memory, ROW)
    memory.write_history([ended(NOW)], ())
    assert kept(memory) == [ROW]


def test_one_of_several_dashboards_replaces_an_earlier_database(tmp_path: Path, now: Clock) -> None:
    path, pages = earlier(tmp_path), 8
    together = Barrier(pages)

    def start(number: int) -> bool:
        memory = DashboardStore(path, now=now)
        together.wait()
        had = memory.begin()
        keep(memory, a_row(f"n{number}"))
        memory.close()
        return had

    with ThreadPoolExecutor(pages) as pool:
        assert sorted(pool.map(start, range(pages))) == [False] * (pages - 1) + [True]
    assert len(kept(DashboardStore(path, now=now))) == pages


def test_a_second_dashboard_says_that_it_waits_until_a_deadline(tmp_path: Path, now: Clock) -> None:
    path, said = earlier(tmp_path), list[str]()
    first = Flock.take(path.with_suffix(".lock"))
    assert first is not None
    memory = DashboardStore(path, now=now)
    with pytest.raises(BusyError, match="another dashboard did not create its database within 0 s"):
        memory.begin(lambda: said.append("waits"), patience=0)
    assert memory.begin(first.release)
    assert said == ["waits"]


def test_a_failure_cause_has_its_first_time_and_is_kept_as_long_as_its_runs(
    memory: DashboardStore, tmp_path: Path, now: Clock
) -> None:
    ends = [replace(ended(NOW - age, kind=Kind.FAILED), failure_cause="x") for age in (50, 0, 99)]
    memory.write_history(ends, ())
    memory.write_history(
        [replace(ended(NOW, node="b"), failure_cause="y"), *ends, ended(NOW, node="c")], ()
    )
    assert failures(memory) == {"x": (NOW - 99, NOW), "y": (NOW, NOW)}
    few = MemoryLimits(failures=1)
    memory = DashboardStore(tmp_path / "web" / "fleet.sqlite", now=now, limits=few)
    memory.write_history([replace(ended(NOW + 1, node="b"), failure_cause="z")], ())
    memory.prune()
    assert failures(memory) == {"z": (NOW + 1, NOW + 1)}
    now.seconds += KEPT + DAY
    memory.prune()
    assert failures(memory) == {}


def test_a_node_does_not_push_out_the_failure_causes_of_others(tmp_path: Path, now: Clock) -> None:
    few = MemoryLimits(failures=9, failures_of_node=3)
    memory = DashboardStore(tmp_path / "fleet.sqlite", now=now, limits=few)
    memory.write_history([replace(ended(NOW), failure_cause="x")], ())
    lies = [replace(ended(NOW + 1 + at, node="eve"), failure_cause=f"{at}") for at in range(20)]
    memory.write_history(lies, ())
    memory.prune()
    assert sorted(failures(memory)) == ["17", "18", "19", "x"]


def test_a_damaged_memory_is_an_error_not_empty(memory: DashboardStore, tmp_path: Path) -> None:
    keep(memory, ROW)
    with sqlite3.connect(tmp_path / "web" / "fleet.sqlite") as connection:
        connection.execute("UPDATE nodes SET row = '{}'")
    connection.close()
    with pytest.raises(StateError, match=r"damaged row.*move the file away"):
        kept(memory)
