"""All records of a node: finding, waiting, settling, and pruning by number and age."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.names import RunId
from localpuppet.base.machine.ports import ProcessId
from localpuppet.node.runs.run import Outcome, RunState, Status
from localpuppet.node.runs.run_records import RunDirectory
from tests.rigs.recorded import PUPPET, Recorded


@pytest.fixture
def site(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path)


def test_settling_closes_only_records_of_dead_supervisors_and_damaged_ones(site: Recorded) -> None:
    dead, living, good = site.begin(supervisor=asdict(PUPPET)), site.begin(), site.begin()
    site.finish(good, Outcome.FAILED)
    before = (living.status.read_bytes(), good.status.read_bytes())
    site.records.settle()
    assert json.loads(dead.status.read_text())["outcome"] == "interrupted"
    assert [run.is_open for run in (dead, living, good)] == [False, True, False]
    assert (living.status.read_bytes(), good.status.read_bytes()) == before
    living.status.write_text("{")
    site.records.settle()
    found = json.loads(living.status.read_text())
    assert (found["outcome"], found["id"], living.is_open) == ("interrupted", living.id, False)


def days(site: Recorded, count: int) -> list[RunId]:
    """Make one finished run per day, and return the ids, newest first."""
    made = []
    for _ in range(count):
        site.clock.advance(86400)
        made.append(site.finish(site.begin()).id)
    return made[::-1]


@pytest.mark.parametrize(
    ("runs", "age", "left"), [(3, 100, 3), (100, 3, 7), (0, 1, 1), (2, 4, 2), (7, 2, 6)]
)
def test_pruning_keeps_runs_and_days(site: Recorded, runs: int, age: int, left: int) -> None:
    ids = days(site, 9)
    statuses: list[Status] = []
    site.records.prune(runs=runs, days=age, keep=ids[0], before=statuses.append)
    assert site.records.ids() == ids[:left]
    assert [status.id for status in statuses] == ids[left:]


def test_pruning_stops_at_a_run_whose_note_fails(site: Recorded) -> None:
    ids = days(site, 4)

    def refuse(status: Status) -> None:
        if status.id == ids[2]:
            raise StateError("no space")

    with pytest.raises(StateError, match="no space"):
        site.records.prune(runs=1, days=90, keep=ids[0], before=refuse)
    assert site.records.ids() == [ids[0], *ids[2:]]


@pytest.mark.parametrize("jump", [-800, 800, 80_000])
@pytest.mark.parametrize("wrong_runs", [1, 48])
def test_a_clock_that_jumped_prunes_nothing(site: Recorded, jump: int, wrong_runs: int) -> None:
    """Also if the clock stays wrong for a day of runs, is corrected, and jumps twice more."""
    ids = days(site, 6)
    away = jump * 86400
    for advance in (away, 1800 - away, 2 * away, 1800 - 2 * away, 4 * away):
        site.clock.advance(advance)
        for _ in range(wrong_runs):
            site.clock.advance(1800)
            ids.insert(0, site.finish(site.begin()).id)
            site.records.prune(runs=500, days=30, keep=ids[0], before=lambda _: None)
    assert site.records.ids() == ids


def test_pruning_by_age_resumes_when_newer_runs_confirm_the_clock(site: Recorded) -> None:
    days(site, 6)
    site.clock.advance(800 * 86400)
    ids = days(site, 10)
    site.records.prune(runs=500, days=5, keep=ids[0], before=lambda _: None)
    assert site.records.ids() == ids[:9]


def test_what_killed_writers_left_is_removed_after_an_hour(site: Recorded) -> None:
    """Of the state directory and of its directories, but of no run."""
    run = site.finish(site.begin())
    state = site.records.directory.parent
    keys = state / "keys"
    keys.mkdir()
    old = [place / ".a.json.0123456789ab" for place in (state, keys, run.path)]
    young = [path.with_name(".b.json.0123456789ab") for path in old]
    for path in (*old, *young):
        path.touch()
    for path in old:
        os.utime(path, (0, 0))
    site.records.remove_temporary_files()
    assert [path.exists() for path in (*old, *young)] == [False, False, True, True, True, True]
    assert site.records.status(run).succeeded


def test_pruning_keeps_the_run_that_prunes_and_active_runs(site: Recorded) -> None:
    old, active = days(site, 2), site.begin()
    site.records.prune(runs=0, days=1, keep=old[1], before=lambda _: None)
    assert site.records.ids() == [active.id, old[1]]


def test_pruning_removes_damaged_records_and_those_of_dead_supervisors(site: Recorded) -> None:
    damaged, dead = site.begin(), site.begin(supervisor=None)
    damaged.status.write_text("{")
    newest = days(site, 1)[0]
    site.records.prune(runs=1, days=30, keep=newest, before=lambda _: None)
    assert site.records.ids() == [newest]
    assert not dead.path.exists()


@pytest.mark.parametrize(
    ("name", "index"),
    [(None, 0), ("-1", 1), ("-2", 2), ("aaa1", 2), ("20261120", 2), ("20261122T", 0)],
)
def test_a_run_has_several_names(site: Recorded, name: str | None, index: int) -> None:
    ids = [f"202611{day}T140312.482913Z-{end}" for day, end in ((22, "ccc3"), (21, "bbb1"))]
    ids.append("20261120T140312.482913Z-aaa1")
    for run in ids:
        (site.records.directory / run).mkdir(parents=True)
    assert site.records.get(name).id == ids[index]
    assert site.records.get(ids[1]).id == ids[1]
    with pytest.raises(InvalidInputError, match="means 3 runs"):
        site.records.get("2026")
    for wrong in ("1", "20271122", "1122", "-3", "-0", "", "..", "xyz"):
        with pytest.raises(InvalidInputError, match=r"is not a run|means"):
            site.records.get(wrong)


def test_a_release_is_in_use_while_its_puppet_runs(site: Recorded) -> None:
    site.finish(site.begin(release="app/tags/over"))
    site.begin(release="app/tags/going")
    site.begin(release="app/tags/dead", supervisor=None)
    orphan = ProcessId(pid=99, boot_id="b", started=9)
    site.processes.living.append(orphan)
    site.begin(release="app/tags/orphaned", supervisor=None, puppet=asdict(orphan))
    abandoned = site.begin()
    abandoned.close(
        site.status(
            abandoned,
            state=RunState.FINISHED,
            outcome=Outcome.TIMED_OUT,
            release="app/tags/undying",
            puppet=asdict(orphan),
        )
    )
    used = {"app/tags/going", "app/tags/orphaned", "app/tags/undying"}
    assert {app for app, _ in site.records.in_use()} == used


def test_a_damaged_request_of_an_active_run_prevents_removals(site: Recorded) -> None:
    run = site.begin(release="app/tags/going")
    ((app, modulepath),) = site.records.in_use()
    assert (app, [str(path) for path in modulepath]) == (
        "app/tags/going",
        json.loads(run.request.read_text())["modulepath"],
    )
    run.request.write_text('{"schema": 1}')
    with pytest.raises(StateError, match="is damaged, and its run is active"):
        site.records.in_use()


def waiting(
    site: Recorded, run: RunDirectory, *, timeout: float | None, then: Callable[[], object]
) -> tuple[Status, list[float]]:
    """Wait for a run, and call `then` after ten checks. Return its status and the ticks."""
    ticks: list[float] = []

    def tick(seconds: float) -> None:
        ticks.append(round(seconds, 3))
        if len(ticks) == 10:
            then()

    status = site.records.wait(
        run, sleep=site.clock.advance, clock=site.clock, timeout=timeout, tick=tick
    )
    return status, ticks


def test_waiting_ends_when_the_run_does(site: Recorded) -> None:
    run = site.begin()
    status, ticks = waiting(site, run, timeout=None, then=lambda: site.finish(run))
    assert status.outcome is Outcome.CHANGED
    assert (len(ticks), ticks[0]) == (10, 0)
    status, ticks = waiting(site, run, timeout=None, then=lambda: None)
    assert (status.outcome, ticks) == (Outcome.CHANGED, [])


def test_waiting_ends_at_its_timeout_with_the_current_status(site: Recorded) -> None:
    run = site.begin()
    status, ticks = waiting(site, run, timeout=5.0, then=lambda: None)
    assert status.state is RunState.RUNNING
    assert 4.8 <= ticks[-1] < 5


def test_waiting_ends_when_the_supervisor_and_its_puppet_have_died(site: Recorded) -> None:
    run = site.begin()
    status, ticks = waiting(site, run, timeout=None, then=site.supervisors_die)
    assert (status.outcome, len(ticks)) == (Outcome.INTERRUPTED, 10)
    site.processes.living.append(PUPPET)
    ended = lambda: site.processes.living.remove(PUPPET)  # noqa: E731 - a name for its effect
    status, ticks = waiting(site, run, timeout=None, then=ended)
    assert (status.outcome, len(ticks)) == (Outcome.INTERRUPTED, 10)
