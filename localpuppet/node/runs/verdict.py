"""Decides how a run ended and when a running one is stopped, and writes its log.

`StopDecision` is a state machine over the time and the number of signals. This file is apart from
`run`, because readers of the status of runs do not need it.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from enum import Enum
from pathlib import Path
from types import MappingProxyType

from localpuppet.base.formats.text import joined, printable
from localpuppet.base.formats.times import show_duration, show_time
from localpuppet.base.machine.files import disk_errors
from localpuppet.base.value import Value
from localpuppet.node.puppet.command_line import is_final_error
from localpuppet.node.puppet.fault import FailureCause
from localpuppet.node.puppet.report import PuppetReport
from localpuppet.node.runs.run import NOTHING_APPLIED, Outcome, RunState, Status, show_resources


class RunVerdict(Value):
    """The result of a run, with the reason in one line."""

    outcome: Outcome
    reason: str


class PuppetEnd(Value):
    """What is known after Puppet's end.

    Attributes:
        report: Its report of this run; `None` if it left none.
        directories: Directories of the release, see `command_line.file_name`.
        failure_cause: Why Puppet was not started, in words that may leave the node.
    """

    code: int | None
    signal: int | None
    stopped: RunVerdict | None
    report: PuppetReport | None = None
    report_problem: str = ""
    first_error: str = ""
    directories: Mapping[str, str] = MappingProxyType({})
    classes: tuple[str, ...] = ()
    failure_cause: FailureCause | None = None


def _without_report(ending: PuppetEnd) -> str:
    reasons = {
        0: "Puppet exited 0 but wrote no report for this run",
        1: NOTHING_APPLIED,
        2: "Puppet exited 2 but wrote no report for this run",
    }
    unknown = f"Puppet exited {ending.code} and wrote no report"
    reason = ending.report_problem or reasons.get(ending.code or 0, unknown)
    return f"{reason}: {ending.first_error}" if ending.first_error else reason


def _without_code(ending: PuppetEnd) -> str:
    if ending.signal is not None:
        return f"signal {ending.signal} killed Puppet"
    return "exit code of Puppet unknown: its parent, the fork server, was killed"


def _failed(reason: str) -> RunVerdict:
    return RunVerdict(outcome=Outcome.FAILED, reason=reason)


def decide(ending: PuppetEnd) -> RunVerdict:
    """Decide the result of a run. Success requires Puppet's exit code and its report.

    The codes are those of `--detailed-exitcodes`: 0 nothing changed, 2 changed, 4 failed, 6 both; 1
    is a catalog that did not compile, or a failed hook.
    """
    if ending.stopped is not None:
        return ending.stopped
    code, report = ending.code, ending.report
    if code is None:
        return _failed(_without_code(ending))
    if report is None:
        return _failed(_without_report(ending))
    counts, both = report.resources, (code, report.status)
    if both in ((0, "failed"), (2, "failed"), (0, "changed")):
        return _failed(f"Puppet exited {code} but its report says {report.status}")
    if both == (0, "unchanged"):
        pending = f"noop: {show_resources(counts.out_of_sync)} would change"
        reason = pending if report.noop_pending else ""
        return RunVerdict(outcome=Outcome.UNCHANGED, reason=reason)
    if both == (2, "changed"):
        return RunVerdict(outcome=Outcome.CHANGED, reason="")
    if code in (4, 6):
        first = f": {report.first_failed}" if report.first_failed else ""
        return _failed(f"{show_resources(counts.failed)} failed{first}")
    if code == 1:
        ended = "catalog_application" in report.seconds
        if not (ended or counts.total):  # a failed prerun_command, for example
            return _failed(_without_report(ending))
        when = f"{'after' if ended else 'while'} it applied the catalog ({report.status})"
        return _failed(f"Puppet exited 1 {when}: {ending.first_error or 'see the log'}")
    return _failed(f"Puppet exited {code} and its report says {report.status}: they disagree")


def finish(
    status: Status, verdict: RunVerdict, ending: PuppetEnd, *, at: datetime, seconds: float
) -> Status:
    report = ending.report
    cause = ending.failure_cause or (report.failure_cause if report else None)
    cause = cause or FailureCause.of_message(ending.first_error, ending.directories, ending.classes)
    has_failed = verdict.outcome is Outcome.FAILED
    return replace(
        status,
        state=RunState.FINISHED,
        outcome=verdict.outcome,
        reason=verdict.reason,
        finished_at=show_time(at),
        seconds=round(seconds, 3),
        exit_code=ending.code,
        signal=ending.signal,
        noop=status.noop or (report.noop if report else False),
        noop_pending=report.noop_pending if report else False,
        resources=report.resources if report else None,
        puppet_seconds=dict(report.seconds) if report else None,
        corrective_change=report.corrective_change if report else False,
        failure_cause=cause.to_dict() if cause and has_failed else None,
    )


class StopStep(Enum):
    """The action to take now."""

    NOTHING = "nothing"
    TERM = "term"
    KILL = "kill"
    ABANDON = "abandon"


class StopDecision:
    """Decides when to stop one run.

    `grace` is the time between TERM and KILL, and between KILL and giving up.
    """

    def __init__(self, *, started: float, timeout: float, grace: float) -> None:
        self.started = started
        self._deadline = started + timeout
        self._timeout = timeout
        self._grace = grace
        self._since: float | None = None
        self._last = StopStep.NOTHING
        self.verdict: RunVerdict | None = None

    def step(self, now: float, cancellations: int) -> StopStep:
        """Return the action at `now`, after `cancellations` requests to stop; each action once."""
        if self._last is StopStep.NOTHING:
            if cancellations:
                self.verdict = RunVerdict(outcome=Outcome.CANCELLED, reason="cancelled by a signal")
            elif now >= self._deadline:
                length = show_duration(self._timeout)
                self.verdict = RunVerdict(
                    outcome=Outcome.TIMED_OUT, reason=f"ran longer than its timeout of {length}"
                )
            return self._go(StopStep.TERM, now) if self.verdict else StopStep.NOTHING
        waited = now - (self._since or now)
        if self._last is StopStep.TERM and (waited >= self._grace or cancellations > 1):
            return self._go(StopStep.KILL, now)
        if self._last is StopStep.KILL and waited >= self._grace:
            return self._go(StopStep.ABANDON, now)
        return StopStep.NOTHING

    def _go(self, step: StopStep, now: float) -> StopStep:
        self._last = step
        self._since = now
        return step


MAX_LOG = 64 * 1024 * 1024
# Characters of an error of Puppet that are kept in memory.
MAX_ERROR = 2000
# Of a line without an end, which is written in pieces.
MAX_PIECE = 64 * 1024


class RunLog:
    """The readable output of one run.

    If the disk is full or the output too long, the log is cut and the run continues. `named`
    shortens names of files in a line, `hide` takes sealed values out.
    """

    def __init__(
        self,
        path: Path,
        named: Callable[[str], str] = str,
        hide: Callable[[bytes], bytes] = bytes,
    ) -> None:
        self.cut = ""
        self._named = named
        self._hide = hide
        self.first_error = ""
        self._size = 0
        self._rest = b""
        with disk_errors(path):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._file = os.fdopen(fd, "ab", buffering=0)

    def take(self, data: bytes, line: Callable[[str], None], *, end: bool = False) -> None:
        """Write `data` with terminal escapes spelt out, and pass its whole lines to `line`.

        If no data follows (`end`), an unfinished line counts as a line.
        """
        pieces = (self._rest + data).split(b"\n")
        self._rest = pieces.pop()
        if self._rest and end:
            pieces.append(self._rest)
            self._rest = b""
        elif len(self._rest) > 2 * MAX_PIECE:  # its end may have the beginning of a sealed value
            whole = self._hide(self._rest)
            pieces += filter(None, [whole[:-MAX_PIECE]])
            self._rest = whole[-MAX_PIECE:]
        for piece in pieces:
            data = self._hide(piece)
            text = self._named(printable(data.decode("utf-8", "backslashreplace")))
            if not self.first_error and is_final_error(text):
                self.first_error = joined(text.removeprefix("Error: "))[:MAX_ERROR]
            self._write(text)
            line(text)

    def _write(self, text: str) -> None:
        if self.cut:
            return
        try:
            self._size += self._file.write(f"{text}\n".encode("utf-8", "backslashreplace"))
        except OSError as error:
            self.cut = f"the log is truncated: {error.strerror}"
        if self._size > MAX_LOG:
            self.cut = f"the log is truncated: more than {MAX_LOG // 1048576} MiB"

    @property
    def full(self) -> bool:
        """Whether the log has reached its limit and drops the rest."""
        return self._size > MAX_LOG

    def close(self) -> None:
        self._file.close()
