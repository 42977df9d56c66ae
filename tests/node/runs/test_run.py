"""The verdict on the end of a run, the steps to stop it, and its status from the record."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.names import RunId
from localpuppet.base.formats.times import parse_duration, show_duration
from localpuppet.base.machine.files import write_json
from localpuppet.base.machine.ports import ProcessId
from localpuppet.node.puppet.report import PuppetReport, Resources
from localpuppet.node.runs.run import Outcome, RunState, Status, new_run_id
from localpuppet.node.runs.run_records import Records, RunDirectory
from localpuppet.node.runs.verdict import PuppetEnd, RunVerdict, StopDecision, StopStep, decide
from tests.doubles.ports import FakeProcesses

ID = RunId("20261120T140312.482913Z-7f3a")


def report(
    status: str, *, failed: int = 0, noop_pending: bool = False, ended: bool = False
) -> PuppetReport:
    return PuppetReport(
        status=status,
        noop=noop_pending,
        noop_pending=noop_pending,
        time="2026-11-20T14:03:12Z",
        resources=Resources(total=9, failed=failed, out_of_sync=2),
        seconds={"catalog_application": 0.1} if ended else {},
    )


@pytest.mark.parametrize(
    ("code", "signal", "found", "outcome", "reason"),
    [
        (0, None, report("unchanged"), Outcome.UNCHANGED, ""),
        (2, None, report("changed"), Outcome.CHANGED, ""),
        (
            0,
            None,
            report("unchanged", noop_pending=True),
            Outcome.UNCHANGED,
            "2 resources would change",
        ),
        (0, None, None, Outcome.FAILED, "wrote no report"),
        (2, None, None, Outcome.FAILED, "wrote no report"),
        (1, None, None, Outcome.FAILED, "Puppet applied nothing"),
        (1, None, report("changed", ended=True), Outcome.FAILED, "exited 1 after it applied"),
        (1, None, report("failed"), Outcome.FAILED, "exited 1 while it applied"),
        (4, None, report("failed", failed=1), Outcome.FAILED, "1 resource failed"),
        (6, None, report("failed", failed=3), Outcome.FAILED, "3 resources failed"),
        (0, None, report("failed"), Outcome.FAILED, "its report says failed"),
        (2, None, report("failed"), Outcome.FAILED, "its report says failed"),
        (0, None, report("changed"), Outcome.FAILED, "its report says changed"),
        (2, None, report("unchanged"), Outcome.FAILED, "disagree"),
        (7, None, report("unchanged"), Outcome.FAILED, "disagree"),
        (None, 9, report("changed"), Outcome.FAILED, "signal 9 killed Puppet"),
        (None, None, report("changed"), Outcome.FAILED, "exit code of Puppet unknown"),
    ],
)
def test_a_success_needs_a_matching_exit_code_and_report(
    code: int | None, signal: int | None, found: PuppetReport | None, outcome: Outcome, reason: str
) -> None:
    ending = PuppetEnd(code=code, signal=signal, stopped=None, report=found, report_problem="")
    verdict = decide(ending)
    assert verdict.outcome is outcome
    assert reason in verdict.reason
    assert bool(verdict.reason) or outcome.success


def test_the_verdict_of_a_stopped_run_is_the_reason_of_the_stop() -> None:
    stopped = RunVerdict(outcome=Outcome.TIMED_OUT, reason="too long")
    ending = PuppetEnd(
        code=0, signal=None, stopped=stopped, report=report("changed"), report_problem=""
    )
    assert decide(ending) == stopped


def test_a_run_past_its_timeout_gets_sigterm_then_sigkill_and_is_then_abandoned() -> None:
    stopping = StopDecision(started=100, timeout=10, grace=5)
    assert stopping.step(109, 0) is StopStep.NOTHING
    assert stopping.step(110, 0) is StopStep.TERM
    assert stopping.step(114, 0) is StopStep.NOTHING
    assert stopping.step(115, 0) is StopStep.KILL
    assert stopping.step(120, 0) is StopStep.ABANDON
    assert stopping.verdict is not None
    assert stopping.verdict.outcome is Outcome.TIMED_OUT


def test_a_second_signal_does_not_wait_for_the_grace() -> None:
    stopping = StopDecision(started=0, timeout=1000, grace=30)
    assert stopping.step(1, 1) is StopStep.TERM
    assert stopping.step(2, 1) is StopStep.NOTHING
    assert stopping.step(3, 2) is StopStep.KILL
    assert stopping.verdict == RunVerdict(outcome=Outcome.CANCELLED, reason="cancelled by a signal")


def test_run_ids_sort_by_time_even_when_the_clock_is_set_back() -> None:
    now = datetime(2026, 11, 20, 14, 3, 12, tzinfo=UTC)
    first = new_run_id(now, "ffff", None)
    second = new_run_id(now - timedelta(days=1), "0000", first)
    assert first < second
    assert RunId.parse(second) == second


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("1.5", 1.5), ("30m", 1800), ("1h30m", 5400), ("2d", 172800)]
)
def test_durations_are_parsed(text: str, seconds: float) -> None:
    assert parse_duration(text, what="timeout") == seconds


@pytest.mark.parametrize(
    "text", ["", "-5", "0", "nan", "inf", "1e3", "5x", "5 m", "1h30", "99999w"]
)
def test_invalid_durations_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="timeout"):
        parse_duration(text, what="timeout")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.41, "0.4s"),
        (5.0, "5s"),
        (12.3, "12s"),
        (200, "3m 20s"),
        (1800, "30m"),
        (7500, "2h 5m"),
        (90000, "1d 1h"),
    ],
)
def test_durations_are_shown_with_units(seconds: float, text: str) -> None:
    assert show_duration(seconds) == text


def status(**more: object) -> Status:
    fields: dict[str, object] = {
        "id": ID,
        "state": RunState.RUNNING,
        "release": "foo/trunk",
        "started_at": "2026-11-20T14:03:12.482913Z",
        **more,
    }
    return Status(**fields)  # type: ignore[arg-type]


def make_run(
    tmp_path: Path, processes: FakeProcesses, found: Status
) -> tuple[Records, RunDirectory]:
    records = Records(tmp_path, processes)
    run = RunDirectory(tmp_path / ID)
    run.path.mkdir()
    write_json(run.status, found.to_dict())
    return records, run


LIVE = {"pid": 7, "boot_id": "b", "started": 3}


@pytest.mark.parametrize(
    "supervisor",
    [{**LIVE, "pid": 8}, {**LIVE, "boot_id": "before the reboot"}, {**LIVE, "started": 4}, None],
)
def test_a_record_of_a_dead_supervisor_reads_interrupted(
    tmp_path: Path, supervisor: dict[str, object] | None
) -> None:
    processes = FakeProcesses(living=[ProcessId(pid=7, boot_id="b", started=3)])
    records, run = make_run(tmp_path, processes, status(supervisor=supervisor))
    found = records.status(run)
    assert found.outcome is Outcome.INTERRUPTED
    assert "died" in found.reason


def test_a_record_of_a_live_supervisor_reads_running(tmp_path: Path) -> None:
    processes = FakeProcesses(living=[ProcessId(pid=7, boot_id="b", started=3)])
    records, run = make_run(tmp_path, processes, status(supervisor=LIVE))
    assert records.status(run).state is RunState.RUNNING


def test_a_truncated_record_is_never_a_success(tmp_path: Path) -> None:
    closed = status(state=RunState.FINISHED, outcome=Outcome.CHANGED, resources=Resources(total=2))
    records, run = make_run(tmp_path, FakeProcesses(), closed)
    whole = run.status.read_bytes()
    assert records.status(run).outcome is Outcome.CHANGED
    for length in range(len(whole.rstrip())):
        run.status.write_bytes(whole[:length])
        found = records.status(run)
        assert found.outcome is Outcome.INTERRUPTED
        assert "status.json" in found.reason
    run.status.unlink()
    assert records.status(run).outcome is Outcome.INTERRUPTED


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2},
        {"state": "finished"},
        {"outcome": "changed"},
        {"state": "done", "outcome": "changed"},
        {"outcome": "perfect", "state": "finished"},
        {"id": "../../etc"},
        {"extra": 1},
    ],
)
def test_a_record_that_contradicts_itself_is_damaged(change: dict[str, object]) -> None:
    with pytest.raises(StateError):
        Status.from_dict({**status().to_dict(), **change})


def test_a_written_record_reads_back_as_equal() -> None:
    found = status(state=RunState.FINISHED, outcome=Outcome.FAILED, resources=Resources(failed=1))
    assert Status.from_dict(found.to_dict()) == found


@pytest.mark.parametrize(
    ("name", "index"),
    [(None, 0), ("-1", 1), ("-2", 2), ("aaa1", 2), ("20261120", 2), ("20261122T", 0)],
)
def test_a_run_is_named_by_prefix_suffix_or_position(
    tmp_path: Path, name: str | None, index: int
) -> None:
    ids = [
        "20261122T140312.482913Z-ccc3",
        "20261121T140312.482913Z-bbb1",
        "20261120T140312.482913Z-aaa1",
    ]
    for run in ids:
        (tmp_path / run).mkdir()
    records = Records(tmp_path, FakeProcesses())
    assert records.get(name).id == ids[index]
    for wrong in ("1", "2026", "-3", "-0", "", "xyz"):
        with pytest.raises(InvalidInputError, match=r"is not a run|means"):
            records.get(wrong)


def test_pruning_by_count_and_age_keeps_open_records(tmp_path: Path) -> None:
    now = datetime(2026, 11, 20, tzinfo=UTC)
    live = ProcessId(pid=7, boot_id="b", started=3)
    records = Records(tmp_path, FakeProcesses(living=[live]))
    for age in range(10):
        run = RunDirectory(tmp_path / new_run_id(now - timedelta(days=10 * age), "0000", None))
        run.path.mkdir()
        open_run = age == 8
        found = status(
            id=run.id,
            supervisor=LIVE,
            **({} if open_run else {"state": RunState.FINISHED, "outcome": Outcome.CHANGED}),
        )
        write_json(run.status, found.to_dict())
    ids = records.ids()
    records.prune(runs=8, days=25, keep=ids[0], before=lambda _: None)
    assert records.ids() == [*ids[:6], ids[8]]
