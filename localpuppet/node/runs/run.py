"""A run: its request, its status, its result, and the rule that decides about success.

The formats of the record have schema version 1.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Any

from localpuppet.base.errors import StateError
from localpuppet.base.formats.names import RunId
from localpuppet.base.formats.schema_number import damage_errors, without_schema
from localpuppet.base.formats.times import parse_time, show_time
from localpuppet.base.formats.values import check_field_types
from localpuppet.node.puppet.report import PuppetReport, Resources

if TYPE_CHECKING:
    from localpuppet.node.puppet.fault import FailureCause

SCHEMA = 1
# Runs that are read to count the failed ones.
MAX_STREAK = 50
NOTHING_APPLIED = "Puppet applied nothing"


class RunState(StrEnum):
    """The state of a run."""

    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"


class Outcome(StrEnum):
    """How a finished run ended."""

    UNCHANGED = "unchanged"
    CHANGED = "changed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"

    @property
    def success(self) -> bool:
        """Whether the run left the node as its release describes it."""
        return self in (Outcome.UNCHANGED, Outcome.CHANGED)


def new_run_id(now: datetime, random: str, newest: str | None) -> RunId:
    """Return an id that sorts after `newest`, also when the clock was set back.

    Args:
        now: UTC.
        random: Four hex digits.
        newest: The latest id in the record, if any.
    """
    if newest:
        now = max(now, RunId.parse(newest).time + timedelta(microseconds=1))
    return RunId(f"{now.strftime('%Y%m%dT%H%M%S.%fZ')}-{random}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """`request.json`: the request for a run.

    Attributes:
        id: The run.
        requested_at: ISO 8601, UTC.
        user: The login of the user (`alice`, also under sudo), or the uid.
        cause: What led to it: `manual`, `timer`.
        release: The release, or the name of a work tree.
        modulepath: Absolute directories, in order.
        environment: Puppet's environment.
        input: Where the input came from (a path, `-`, a URL).
        input_sha256: SHA-256 of the input's bytes.
        layers: The layers that the input names.
        data: The ENC data of the input over the answer of the site's ENC, before the release's.
        noop: Whether noop was requested.
        timeout: Seconds.
        command: The whole argument vector of Puppet.
        node_document: The ENC output.
        causes: For a run of the agent: its first causes (`causes`), the number of all (`count`),
            and the paths of triggers (`paths`).
        work_tree: The directory of an unreleased work tree; empty for a release.
        instance_facts: Names of the facts that the cloud's instance data gave to the run.
        assignment: For a run of an assigned release: `release`, `serial`, `by`, `at` and `rollout`;
            else empty.
    """

    id: RunId
    requested_at: str
    user: str
    cause: str
    release: str
    modulepath: tuple[str, ...]
    environment: str
    input: str
    input_sha256: str
    layers: tuple[str, ...]
    noop: bool
    timeout: float
    command: tuple[str, ...]
    node_document: Mapping[str, Any]
    causes: Mapping[str, Any] = field(default_factory=dict)
    work_tree: str = ""
    instance_facts: tuple[str, ...] = ()
    assignment: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"schema": SCHEMA, **asdict(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunVerdict:
    """The result of a run, with the reason in one line."""

    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PuppetEnd:
    """What is known after Puppet's end.

    Attributes:
        code: Its exit code, `None` when a signal killed it.
        signal: The signal's number.
        stopped: Why localpuppet ended Puppet, if it did.
        report: Its report of this run; `None` if it left none.
        report_problem: Why an existing report was rejected.
        first_error: The first error that Puppet printed, or empty.
        failure_cause: Why Puppet was not started, in words that may leave the node.
    """

    code: int | None
    signal: int | None
    stopped: RunVerdict | None
    report: PuppetReport | None = None
    report_problem: str = ""
    first_error: str = ""
    failure_cause: "FailureCause | None" = None


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


def decide(ending: PuppetEnd) -> RunVerdict:
    """Decide the result of a run. Success requires Puppet's exit code and its report.

    The codes are those of `--detailed-exitcodes`: 0 nothing changed, 2 changed, 4 failed, 6 both; 1
    is a catalog that did not compile, or a failed hook.
    """
    if ending.stopped is not None:
        return ending.stopped
    code, report = ending.code, ending.report
    if code is None:
        return RunVerdict(outcome=Outcome.FAILED, reason=_without_code(ending))
    if report is None:
        return RunVerdict(outcome=Outcome.FAILED, reason=_without_report(ending))
    counts = report.resources
    if code in (0, 2) and report.status == "failed":
        return RunVerdict(
            outcome=Outcome.FAILED, reason=f"Puppet exited {code} but its report says failed"
        )
    if code == 0 and report.status == "unchanged":
        noun = "resource" if counts.out_of_sync == 1 else "resources"
        pending = f"noop: {counts.out_of_sync} {noun} would change"
        reason = pending if report.noop_pending else ""
        return RunVerdict(outcome=Outcome.UNCHANGED, reason=reason)
    if code in (0, 2) and report.status == "changed":
        if code == 0:
            return RunVerdict(
                outcome=Outcome.FAILED, reason="Puppet exited 0 but its report says changed"
            )
        return RunVerdict(outcome=Outcome.CHANGED, reason="")
    if code in (4, 6):
        noun = "resource" if counts.failed == 1 else "resources"
        first = f": {report.first_failed}" if report.first_failed else ""
        return RunVerdict(outcome=Outcome.FAILED, reason=f"{counts.failed} {noun} failed{first}")
    if code == 1:
        after = f"Puppet exited 1 after it applied the catalog ({report.status})"
        reason = f"{after}: {ending.first_error or 'see the log'}"
        return RunVerdict(outcome=Outcome.FAILED, reason=reason)
    return RunVerdict(
        outcome=Outcome.FAILED,
        reason=f"Puppet exited {code} and its report says {report.status}: they disagree",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """`status.json`: the status of a run.

    Attributes:
        id: The run.
        state: queued, running or finished.
        outcome: The result, only when finished.
        reason: One line, or empty.
        release: The release, or the name of a work tree.
        noop: Whether noop was requested.
        partial: Whether only some resources were selected (tags).
        part: The options that selected them; empty for a whole run.
        started_at: When the record was opened, ISO 8601.
        finished_at: When it was closed.
        seconds: Duration by the monotonic clock.
        exit_code: Puppet's; `None` before its end, or when a signal killed it or it never started.
        signal: The signal that killed it.
        puppet_started: Whether Puppet was started at all.
        noop_pending: Whether a noop run found something to change.
        resources: Counts of Puppet's report.
        puppet_seconds: Times of Puppet's report.
        supervisor: The supervisor's process: `{"pid", "boot_id", "started"}`.
        puppet: Puppet's process, the same keys; `None` before it started.
        work_tree: The directory of an unreleased work tree; empty for a release.
        repaired: Which files of the release were changed on the node and repaired before the run.
        warm: Whether the fork server made Puppet's process.
        cold_reason: Why a warm start failed; else empty.
        corrective_change: Whether Puppet reported corrective changes.
        failure_cause: The failure cause, as `node.puppet.fault.FailureCause` has it, or `None`.
    """

    id: RunId
    state: RunState
    outcome: Outcome | None = None
    reason: str = ""
    release: str
    noop: bool = False
    partial: bool = False
    started_at: str
    finished_at: str | None = None
    seconds: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    puppet_started: bool = False
    noop_pending: bool = False
    resources: Resources | None = None
    puppet_seconds: Mapping[str, float] | None = None
    supervisor: Mapping[str, Any] | None = None
    puppet: Mapping[str, Any] | None = None
    work_tree: str = ""
    part: str = ""
    repaired: str = ""
    warm: bool = False
    cold_reason: str = ""
    corrective_change: bool = False
    failure_cause: Mapping[str, str] | None = None

    @property
    def whole(self) -> bool:
        """Whether all of a release was applied, so that a rollback can return to the run."""
        return not (self.noop or self.partial or self.work_tree)

    @property
    def succeeded(self) -> bool:
        """Whether the run has ended with success."""
        return self.outcome is not None and self.outcome.success

    @property
    def good(self) -> bool:
        """Whether the run left the node as its release describes it."""
        return self.whole and self.succeeded

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "Status":
        """Return the status."""
        fields = without_schema(raw, SCHEMA)
        with damage_errors():
            fields["id"] = RunId.parse(fields["id"])
            fields["state"] = RunState(fields["state"])
            if fields["outcome"] is not None:
                fields["outcome"] = Outcome(fields["outcome"])
            if fields["resources"] is not None:
                fields["resources"] = Resources(**fields["resources"])
            status = cls(**fields)
            check_field_types(status)
            if status.resources is not None:
                check_field_types(status.resources)
            for text in (status.started_at, status.finished_at):
                if text is not None:
                    parse_time(text)
        if (status.state is RunState.FINISHED) != (status.outcome is not None):
            raise StateError("is damaged: state and outcome contradict each other")
        return status

    def finished(
        self, verdict: RunVerdict, ending: PuppetEnd, *, at: datetime, seconds: float
    ) -> "Status":
        """Return this status closed."""
        from localpuppet.node.puppet.fault import (
            FailureCause,  # a reader of records does not need it
        )

        report = ending.report
        cause = ending.failure_cause or (report.failure_cause if report else None)
        cause = cause or FailureCause.of_message(ending.first_error)
        has_failed = verdict.outcome is Outcome.FAILED
        return replace(
            self,
            state=RunState.FINISHED,
            outcome=verdict.outcome,
            reason=verdict.reason,
            finished_at=show_time(at),
            seconds=round(seconds, 3),
            exit_code=ending.code,
            signal=ending.signal,
            noop=self.noop or (report.noop if report else False),
            noop_pending=report.noop_pending if report else False,
            resources=report.resources if report else None,
            puppet_seconds=dict(report.seconds) if report else None,
            corrective_change=report.corrective_change if report else False,
            failure_cause=cause.to_dict() if cause and has_failed else None,
        )

    def interrupted(self, reason: str) -> "Status":
        """Return this status closed as `interrupted`."""
        return replace(self, state=RunState.FINISHED, outcome=Outcome.INTERRUPTED, reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureStreak:
    """Failed runs without a successful one between them.

    Attributes:
        since: When the first of them ended, ISO 8601, UTC; empty without one.
        runs: How many failed; `MAX_STREAK` for that number or more.
    """

    since: str = ""
    runs: int = 0


def failure_streak(history: Iterable[Status]) -> FailureStreak:
    """Return the failed runs since the last success; cancelled and active runs do not count.

    Args:
        history: The runs, newest first.
    """
    since, runs = "", 0
    for status in islice(history, MAX_STREAK):
        if status.succeeded:
            break
        if status.outcome not in (None, Outcome.CANCELLED):
            since, runs = status.finished_at or status.started_at, runs + 1
    return FailureStreak(since=since, runs=runs)
