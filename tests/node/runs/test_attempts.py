"""Attempts: localpuppet records every refused apply."""

import json
import shutil
from pathlib import Path

import pytest

from localpuppet.base.errors import BusyError, InvalidInputError, OnHoldError, StateError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.formats.times import show_time
from localpuppet.base.machine.files import write_json
from localpuppet.node.runs.attempts import KEPT, LONGEST, Attempts
from localpuppet.node.runs.options import RunOptions
from localpuppet.node.runs.run import Attempt, RefusalKind, refusal
from localpuppet.node.runs.run_records import Records
from tests.doubles.ports import FakeClock, FakeProcesses
from tests.rigs.node import Node

APP = ReleasePath("web/tags/r9")
OPTIONS = RunOptions(noop=False, tags=None, extra=(), timeout=60, user="alice", cause="manual")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def logged() -> list[str]:
    return []


@pytest.fixture
def attempts(tmp_path: Path, clock: FakeClock, logged: list[str]) -> Attempts:
    return Attempts(
        directory=tmp_path / "attempts",
        own=Path("input.yaml"),
        records=Records(tmp_path / "runs", FakeProcesses()),
        metrics=tmp_path / "metrics.prom",
        clock=clock,
        system_log=logged.append,
    )


def refuse(attempts: Attempts, error: Exception, *, app: ReleasePath | None = APP) -> None:
    with pytest.raises(type(error)), attempts.record_refusal(OPTIONS) as set_release:
        if app is not None:
            set_release(app)
        raise error


def test_a_refusal_is_recorded_with_its_message(attempts: Attempts, clock: FakeClock) -> None:
    refuse(attempts, OnHoldError("on hold: x", hint="ask"))
    found = attempts.newest()
    assert found is not None
    assert (found.refusal, found.reason, found.release) == (
        RefusalKind.ON_HOLD,
        "on hold: x (ask)",
        APP,
    )
    assert (found.user, found.input, found.at) == ("alice", "input.yaml", show_time(clock.now()))


def test_a_repeated_refusal_is_counted(attempts: Attempts, clock: FakeClock) -> None:
    begun = show_time(clock.now())
    for _ in range(3):
        refuse(attempts, BusyError("busy"))
        clock.advance(60)
    refuse(attempts, InvalidInputError("is not a release"), app=None)
    newest, repeated = attempts.history()
    assert (newest.times, newest.refusal, newest.release) == (1, RefusalKind.INVALID_INPUT, "")
    assert (repeated.times, repeated.since) == (3, begun)


def test_only_the_newest_attempts_are_kept(attempts: Attempts, clock: FakeClock) -> None:
    for number in range(KEPT + 5):
        refuse(attempts, InvalidInputError(f"problem {number}"))
        clock.advance(1)
    found = list(attempts.history())
    assert len(found) == KEPT
    assert found[0].reason == f"problem {KEPT + 4}"


def test_a_failure_of_a_recorded_run_is_no_attempt(attempts: Attempts, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "20261120T140312.482913Z-7f3a"
    run.mkdir(parents=True)
    me = {"pid": 1, "boot_id": "b", "started": 1}
    status = {"schema": 1, "id": run.name, "state": "running", "outcome": None}
    rest = {"release": "web/tags/r9", "started_at": "2026-11-20T14:03:12Z", "resources": None}
    write_json(run / "status.json", {**status, **rest, "supervisor": me})
    refuse(attempts, StateError("the disk is full"))
    assert attempts.newest() is None


def test_an_attempt_may_be_in_the_log(
    attempts: Attempts, tmp_path: Path, logged: list[str]
) -> None:
    refuse(attempts, BusyError("busy"))
    assert logged == []
    shutil.rmtree(tmp_path / "attempts")
    (tmp_path / "attempts").write_text("not a directory")
    refuse(attempts, InvalidInputError("a\nb", hint="c" * 5000))
    refuse(attempts, OnHoldError("on hold"), app=None)
    problem = f"not recorded: {tmp_path}/attempts: File exists"
    assert [len(line) for line in logged] == [LONGEST, len(logged[1])]
    assert logged[0].startswith("apply web/tags/r9 was refused: a")
    assert "\n" not in logged[0]
    assert logged[1] == f"apply was refused: on hold; {problem}"


def test_a_damaged_attempt_is_left_out(attempts: Attempts, tmp_path: Path) -> None:
    refuse(attempts, BusyError("busy"))
    file = next((tmp_path / "attempts").iterdir())
    raw = json.loads(file.read_text())
    for damaged in ("{", json.dumps({**raw, "times": "1"}), json.dumps({**raw, "schema": 2})):
        file.write_text(damaged)
        assert attempts.newest() is None
    assert Attempt.from_dict(raw).to_dict() == raw


def test_every_error_has_a_kind_of_refusal() -> None:
    assert refusal(PermissionError("no")) is RefusalKind.MACHINE
    assert refusal(OnHoldError("no")) is RefusalKind.ON_HOLD


def test_a_refused_apply_is_in_history_status_and_metrics(node: Node) -> None:
    node.app("notify { 'hello': }")
    node.write("other.yaml", "app: app/tags/r9\n")
    node.run("apply", str(node.root / "other.yaml"), "--noop", code=2)
    assert node.runs() == []
    before = node.run("status", code=0)
    assert "refused (noop)" in before.out
    attempt = node.run("status", "--json").json["attempt"]
    assert (attempt["release"], attempt["refusal"], attempt["noop"]) == (
        "app/tags/r9",
        "invalid_input",
        True,
    )
    metrics = node.state / "metrics.prom"
    label = 'localpuppet_last_attempt_refused{release="app/tags/r9",refusal="invalid_input"}'
    assert f"{label} 1\n" in metrics.read_text()
    node.run("apply", "--noop", code=0)
    assert f"{label} 1\n" in metrics.read_text(), "a noop run does not change the metric"
    node.run("apply", code=0)
    assert node.run("status", "--json").json["attempt"] is None, "a run is newer"
    assert f"{label} 0\n" in metrics.read_text()
    assert "localpuppet_last_attempt_timestamp_seconds" in metrics.read_text()
    node.run("disable", "-m", "x")
    node.run("apply", code=75)
    assert 'refusal="on_hold"' in metrics.read_text()
    listed = node.run("history")
    assert [" refused" in line for line in listed.out.splitlines()] == [
        *(False, True, False, False, True)
    ]
    history = node.run("history", "--json").json
    assert [found["refusal"] for found in history["attempts"]] == ["on_hold", "invalid_input"]
    assert len(history["runs"]) == 2


def written(node: Node) -> set[str]:
    """Return the files of a root, except the cache of accepted documents."""
    files = {str(path.relative_to(node.root)) for path in node.root.rglob("*") if path.is_file()}
    return {file for file in files if not file.startswith("var/cache/documents/")}


def test_a_refused_apply_writes_only_the_files_of_the_reference(node: Node) -> None:
    node.app("notify { 'hello': }")
    node.write("missing.yaml", "app: app/tags/r9\n")
    before = written(node)
    node.run("apply", str(node.root / "missing.yaml"), code=2)
    always = {"var/kept.lock", "var/metrics.prom"}
    assert _without_attempts(written(node) - before) == always
    assert len(list((node.state / "attempts").iterdir())) == 1
    node.run("disable", "-m", "x", code=0)
    before = written(node)
    node.run("apply", code=75)
    assert _without_attempts(written(node) - before) == {"var/lock"}
    assert (node.state / "lock").read_bytes() == b""
    assert not (node.root / "node.yaml").exists()


def _without_attempts(files: set[str]) -> set[str]:
    return {file for file in files if not file.startswith("var/attempts/")}
