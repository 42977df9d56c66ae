"""The verdict on the end of a run, the steps to stop it, and its status from the record."""

from functools import partial
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.text import without_middle
from localpuppet.base.formats.times import parse_duration, show_duration
from localpuppet.node.puppet.command_line import with_names
from localpuppet.node.puppet.report import PuppetReport, Resources
from localpuppet.node.runs.run import Outcome
from localpuppet.node.runs.verdict import (
    MAX_LOG,
    PuppetEnd,
    RunLog,
    RunVerdict,
    StopDecision,
    StopStep,
    decide,
)


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


def test_durations_are_parsed_and_shown_with_units() -> None:
    parsed = {"90": 90, "1.5": 1.5, "30m": 1800, "1h30m": 5400, "2d": 172800}
    assert {text: parse_duration(text) for text in parsed} == parsed
    for text in ("", "-5", "0", "nan", "inf", "1e3", "5x", "5 m", "1h30", "99999w"):
        with pytest.raises(InvalidInputError, match=r"^--timeout: .*(time|years)"):
            parse_duration(text, where="--timeout")
    shown = {0.41: "0.4s", 5: "5s", 12.3: "12s", 200: "3m 20s"}
    shown |= {1800: "30m", 7500: "2h 5m", 90000: "1d 1h"}
    assert {seconds: show_duration(seconds) for seconds in shown} == shown


def test_a_log_has_complete_lines_with_visible_escapes(tmp_path: Path) -> None:
    lines: list[str] = []
    log = RunLog(tmp_path / "log")
    for piece in (b"one\ntw", b"o\n\x1b[31mred\n", "é\n".encode()[:1], "é\n".encode()[1:]):
        log.take(piece, lines.append)
    log.take(b"Error: no class\nthe rest", lines.append)
    assert lines == ["one", "two", "\\x1b[31mred", "é", "Error: no class"]
    log.take(b"", lines.append, end=True)
    log.close()
    assert lines[-1] == "the rest"
    assert (tmp_path / "log").read_text().splitlines() == lines
    assert (log.first_error, log.cut, log.full) == ("no class", "", False)


def test_a_long_error_keeps_its_place_and_files_have_their_release_names(tmp_path: Path) -> None:
    named = partial(with_names, directories={"/var/objects/1": "dist/", "/var/releases/2": ""})
    log = RunLog(tmp_path / "log", named)
    lines: list[str] = []
    log.take(b"Error: " + b"x " * 400 + b"(file: /var/releases/2/a/b.pp, line: 3)\n", lines.append)
    log.take(b"Warning: old (file: /var/objects/1/c.pp) /var/objects/1/c.pp\n", lines.append)
    log.close()
    assert lines[1] == "Warning: old (file: dist/c.pp) /var/objects/1/c.pp"
    assert log.first_error.endswith("x (file: a/b.pp, line: 3)")
    short = without_middle(log.first_error, most=300)
    assert (len(short), short[:4]) == (300, "x x ")
    assert short.endswith("(file: a/b.pp, line: 3)")


def test_a_log_is_truncated_at_its_limit_but_all_lines_are_shown(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log")
    seen: list[int] = []
    line = b"x" * (1024 * 1024 - 1) + b"\n"
    for _ in range(MAX_LOG // len(line) + 3):
        log.take(line, lambda text: seen.append(len(text)))
    assert log.full
    assert log.cut == "the log is truncated: more than 64 MiB"
    assert MAX_LOG < (tmp_path / "log").stat().st_size <= MAX_LOG + len(line)
    assert sum(seen) > (tmp_path / "log").stat().st_size
    log.close()


def test_a_log_on_a_full_disk_is_truncated_with_a_reason() -> None:
    log = RunLog(Path("/dev/full"))
    seen: list[str] = []
    log.take(b"one\ntwo\n", seen.append)
    log.close()
    assert (seen, log.cut) == (["one", "two"], "the log is truncated: No space left on device")
