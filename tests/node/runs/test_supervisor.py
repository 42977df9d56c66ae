"""The order of a run's steps, refusals before Puppet starts, and the files of a run."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import BusyError, InvalidInputError, OnHoldError, StateError
from localpuppet.base.formats.names import RunId
from localpuppet.base.formats.prometheus import parse_samples
from localpuppet.base.formats.times import show_time
from localpuppet.base.machine.flock import Flock
from localpuppet.base.machine.ports import ProcessEnd, ProcessId
from localpuppet.node.releases.release_records import Ledger
from localpuppet.node.runs import metrics_file
from localpuppet.node.runs.holds import Hold
from localpuppet.node.runs.run import Outcome, RunState, Status
from localpuppet.node.runs.run_records import RunDirectory
from tests.doubles.ports import FakeChild, Started
from tests.node import make
from tests.rigs.recorded import Recorded
from tests.rigs.supervised import APP, DOCUMENT, Site, metric, said


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.processes.close()


def hold(site: Site) -> None:
    since = show_time(site.clock.now())
    site.supervisor().holds.add(Hold(owner="alice", reason="why", since=since, until=None))


def busy(site: Site) -> Flock:
    other = ProcessId(pid=99, boot_id="b", started=9)
    site.processes.living.append(other)
    site.state.mkdir(mode=0o700, exist_ok=True)
    lock = Flock.take(site.state / "lock")
    assert lock is not None
    process = {"pid": 99, "boot_id": "b", "started": 9}
    lock.say({"run": "20261120T140312.482913Z-7f3a", "processes": [process]})
    return lock


def an_agent_runs(site: Site) -> None:
    site.run_lock.parent.mkdir(exist_ok=True)
    site.run_lock.write_text("4242")
    site.processes.command_lines[4242] = ["/usr/bin/ruby", "/usr/bin/puppet", "agent"]


def runs(site: Site) -> list[str]:
    directory = site.state / "runs"
    return sorted(path.name for path in directory.iterdir()) if directory.exists() else []


def test_the_record_is_open_and_the_node_locked_before_puppet_starts(site: Site) -> None:
    looked: list[bool] = []

    def life(site: Site, run: RunDirectory, started: Started) -> FakeChild:
        assert (run.is_open, said(run.status)["state"]) == (True, "queued")
        assert said(run.request)["command"] == list(started.argv)
        assert Flock.take(site.state / "lock") is None
        assert said(site.state / "lock")["run"] == run.id
        assert site.run_lock.exists()
        assert site.observer.commands, "the command is shown before it starts"
        assert not site.applied()
        assert not site.metrics.exists()
        looked.append(True)
        return site.ends(run, 2, status="changed")

    site.life = life
    status = site.supervisor().apply(site.prepared())
    assert (looked, status.outcome) == ([True], Outcome.CHANGED)
    assert not site.run_directory().is_open
    assert not site.run_directory().public.exists()
    assert site.free


def test_the_record_and_both_locks_name_a_running_puppet(site: Site) -> None:
    seen: list[tuple[object, ...]] = []

    class Watched(FakeChild):
        def wait(self, seconds: float) -> ProcessEnd | None:
            recorded = site.recorded()
            holder = said(site.state / "lock")["processes"][-1]["pid"]
            lock = int(site.run_lock.read_text())
            seen.append((recorded["state"], recorded["puppet"]["pid"], holder, lock))
            return super().wait(seconds)

    site.life = lambda _site, _run, _started: Watched()
    site.supervisor().apply(site.prepared())
    pid = site.processes.children[0].identity.pid
    assert seen == [("running", pid, pid, pid)]


def test_puppet_gets_the_lock_the_run_id_and_the_checked_node_document(site: Site) -> None:
    prepared = site.prepared(extra=("--show_diff",))
    site.supervisor().apply(prepared)
    assert site.fits_asked == [(DOCUMENT, prepared.release, ("--show_diff",))]
    (started,) = site.processes.started
    run = site.run_directory()
    assert started.group == f"localpuppet-{run.id}"
    assert started.env == {
        "PATH": "/bin",
        "LC_ALL": "C.UTF-8",
        "LOCALPUPPET_SOCKET": "/run/localpuppet",
        "LOCALPUPPET_RUN": run.id,
        "LOCALPUPPET_NODE_DOCUMENT": str(site.root / "node.yaml"),
    }
    assert json.loads((site.root / "node.yaml").read_text()) == DOCUMENT.to_dict()
    request = said(run.request)
    assert request["node_document"] == DOCUMENT.to_dict()
    assert (request["user"], request["cause"], request["release"]) == ("alice", "manual", APP)
    assert (request["timeout"], request["environment"]) == (3600.0, "production")
    assert (site.state / "environments/production").is_dir()


def test_another_run_prevents_a_run_even_if_the_node_is_on_hold(site: Site) -> None:
    hold(site)
    lock = busy(site)
    with pytest.raises(BusyError, match="run 20261120T140312"):
        site.supervisor().apply(site.prepared())
    lock.release()
    assert (runs(site), site.processes.started) == ([], [])


def no_space(site: Site) -> None:
    site.change(min_free=2**62)


def fits_no_release(site: Site) -> None:
    def refuse(*_asked: object) -> None:
        raise InvalidInputError("there is no class 'app'", where="classes.app")

    site.change(fits=refuse)


# What prevents a run, in the order in which it is checked → the error for the first of them.
REFUSALS: list[tuple[list[Callable[[Site], None]], type[Exception], str]] = [
    ([hold, an_agent_runs], OnHoldError, "why"),
    ([an_agent_runs, no_space], BusyError, "pid 4242"),
    ([no_space], StateError, "Puppet was not started"),
    ([fits_no_release], InvalidInputError, "input.yaml: classes.app: there is no class"),
]


@pytest.mark.parametrize(("causes", "error", "problem"), REFUSALS)
def test_a_refused_run_starts_no_puppet_and_leaves_no_record(
    site: Site, causes: list[Callable[[Site], None]], error: type[Exception], problem: str
) -> None:
    for cause in causes:
        cause(site)
    with pytest.raises(error, match=problem):
        site.supervisor().apply(site.prepared())
    if an_agent_runs in causes:
        assert site.run_lock.read_text() == "4242", "the lock of another process is kept"
        site.run_lock.unlink()
    assert (runs(site), site.processes.started, site.free) == ([], [], True)
    assert not (site.root / "node.yaml").exists(), "the ENC never prints a refused document"


def test_a_run_with_the_owner_of_the_hold_is_permitted(site: Site) -> None:
    hold(site)
    with pytest.raises(OnHoldError):
        site.supervisor().apply(site.prepared(through="bob"))
    assert site.supervisor().apply(site.prepared(through="alice")).state is RunState.FINISHED


def test_an_expired_hold_does_not_prevent_runs_and_enables_the_puppet_agent(site: Site) -> None:
    now = site.clock.now()
    until = show_time(now.replace(minute=30))
    owned = Hold(owner="alice", reason="why", since=show_time(now), until=until)
    site.supervisor().holds.add(owned)
    assert site.installation.disable_file.exists()
    site.clock.advance(1800)
    assert site.supervisor().apply(site.prepared()).outcome is Outcome.CHANGED
    assert not site.installation.disable_file.exists()


def test_puppet_is_not_started_if_the_record_cannot_be_written(site: Site) -> None:
    def in_the_way(*_asked: object) -> None:
        (site.state / "runs").rmdir()
        (site.state / "runs").write_text("a file in place of the directory of records")

    site.change(fits=in_the_way)
    with pytest.raises(StateError):
        site.supervisor().apply(site.prepared())
    assert (site.processes.started, site.free) == ([], True)


def test_the_record_of_a_detached_run_names_the_daemon_before_puppet_starts(site: Site) -> None:
    daemon = ProcessId(pid=77, boot_id="b", started=7)
    steps: list[str] = []

    def detach(run: RunId) -> Callable[[], None]:
        directory = site.run_directory()
        assert (run, directory.is_open) == (directory.id, True)
        assert said(directory.status)["supervisor"]["pid"] == 1
        site.processes.myself = daemon
        steps.append("detached")
        return ready

    def ready() -> None:
        assert site.recorded()["supervisor"]["pid"] == 77
        assert said(site.state / "lock")["processes"][0]["pid"] == 77
        assert not site.processes.started
        steps.append("ready")

    status = site.supervisor().apply(site.prepared(), detach=detach)
    assert steps == ["detached", "ready"]
    assert (status.outcome, status.supervisor) == (
        Outcome.CHANGED,
        {"pid": 77, "boot_id": "b", "started": 7},
    )
    assert site.free


@pytest.mark.parametrize("refused", [False, True])
def test_only_a_run_that_starts_ends_a_rollback(site: Site, refused: bool) -> None:
    ledger = Ledger(site.state)
    ledger.roll_back(make.rollback(APP))
    site.change(min_free=2**62 if refused else 0)
    prepared = replace(site.prepared(), ends_rollback=True)
    with pytest.raises(StateError) if refused else nullcontext():
        site.supervisor().apply(prepared)
    assert (ledger.rollback() is not None) == refused


@pytest.mark.parametrize(
    "options",
    [
        *({"noop": True}, {"tags": "web"}, {"extra": ("--tags=web",)}),
        *({"extra": ("--skip_tags", "web")}, {"document": DOCUMENT}),
    ],
)
def test_a_noop_partial_or_rolled_back_run_does_not_move_the_ledger(
    site: Site, options: dict[str, Any]
) -> None:
    site.life = lambda site, run, _started: site.ends(run, 4, status="failed", failed=1)
    assert site.supervisor().apply(site.prepared(app="app/tags/r2")).outcome is Outcome.FAILED
    site.life = lambda site, run, _started: site.ends(run, 2, status="changed")
    site.supervisor().apply(site.prepared(app="app/tags/r1", **options))
    assert site.applied() == ["app/tags/r2"], "also of a run that failed"
    is_whole = "document" in options
    assert ("last_success" in site.metrics.read_text()) == is_whole, "the success of a release"


def test_metrics_show_the_run_and_keep_the_last_success(site: Site) -> None:
    site.supervisor().apply(site.prepared())
    succeeded = site.clock.now().timestamp()
    assert metric(site.metrics.read_text(), "localpuppet_last_run_success") == 1
    site.clock.advance(1800)
    site.life = lambda site, run, _started: site.ends(run, 4, status="failed", failed=1)
    site.supervisor().apply(site.prepared())
    text = site.metrics.read_text()
    assert metric(text, "localpuppet_last_run_success") == 0
    assert metric(text, 'localpuppet_last_run_outcome{outcome="failed"}') == 1
    assert metric(text, "localpuppet_last_success_timestamp_seconds") == succeeded
    assert metric(text, 'localpuppet_last_run_resources{state="failed"}') == 1


def test_a_failure_to_write_metrics_or_to_prune_does_not_affect_the_run(site: Site) -> None:
    site.change(metrics=site.root / "nowhere" / "metrics.prom")
    stuck = site.state / "runs/20251120T140312.482913Z-7f3a"
    (stuck / "status.json/in the way").mkdir(parents=True)
    (stuck / ".reserve").touch()
    status = site.supervisor().apply(site.prepared())
    assert status.outcome is Outcome.CHANGED
    assert said(site.state / "runs" / status.id / "status.json")["outcome"] == "changed"
    for problem in ("cannot write the metrics", "cannot remove old records"):
        assert [problem in note for note in site.observer.notes].count(True) == 1


def test_old_records_are_removed_after_the_end_of_the_run(site: Site) -> None:
    site.change(keep_runs=1)
    kept: list[list[str]] = []

    def life(site: Site, run: RunDirectory, _started: Started) -> FakeChild:
        kept.append(runs(site))
        return site.ends(run, 2, status="changed")

    site.life = life
    done: list[Status] = []
    for _ in range(3):
        site.clock.advance(60)
        done.append(site.supervisor().apply(site.prepared()))
    ids: list[str] = [status.id for status in done]
    assert kept == [ids[:1], ids[:2], ids[1:]], "pruning waits for the end of the new run"
    assert runs(site) == ids[2:]


def test_the_next_run_closes_the_record_of_a_dead_supervisor(site: Site) -> None:
    class KilledError(Exception):
        pass

    def dies(_run: RunId) -> Callable[[], None]:
        raise KilledError

    with pytest.raises(KilledError):
        site.supervisor().apply(site.prepared(), detach=dies)
    left = site.run_directory()
    assert left.is_open
    site.processes.myself = ProcessId(pid=2, boot_id="b", started=2)
    site.supervisor().apply(site.prepared())
    assert (said(left.status)["outcome"], left.is_open) == ("interrupted", False)


def test_a_run_removes_the_temporary_files_of_killed_writers(site: Site) -> None:
    site.supervisor().apply(site.prepared())
    old = site.state / ".applied.json.0123456789ab"
    old.touch()
    os.utime(old, (0, 0))
    site.supervisor().apply(site.prepared())
    assert not old.exists()


NAME = "localpuppet_confirmation_overdue"


def test_the_metric_of_an_overdue_confirmation_stays_until_it_is_settled(tmp_path: Path) -> None:
    path = tmp_path / "metrics.prom"
    metrics_file.note_confirmation(path, late=False)
    assert not path.exists()  # most nodes never have this metric
    metrics_file.note_confirmation(path, late=True)
    recorded = Recorded(tmp_path)
    run = recorded.records.create(recorded.clock)
    status = recorded.status(run, state=RunState.FINISHED, outcome=Outcome.CHANGED)
    metrics_file.update(path, status, holds=1, rollback=None, now=recorded.clock.now())
    samples = parse_samples(path.read_text())
    assert (samples[NAME], samples["localpuppet_last_run_success"]) == ("1", "1")
    assert (samples["localpuppet_holds"], path.stat().st_mode & 0o777) == ("1", 0o644)
    assert f"# TYPE {NAME} gauge" in path.read_text()
    metrics_file.note_confirmation(path, late=False)
    assert parse_samples(path.read_text())[NAME] == "0"
