"""A run: its id, its status, its result, and why it ended as it did.

`verdict` decides the result, `options` has the request. The formats have schema version 1.

Puppet's errors hold values of parameters, so `Status.reason` stays in the node's own record. Other
nodes, journals and people get a category and a sentence with the failure cause (`puppet.fault`);
'localpuppet why RUN' on the node has the rest.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

from localpuppet.base.errors import (
    BusyError,
    EncError,
    IntegrityError,
    InvalidInputError,
    OnHoldError,
    PuppetMissingError,
    StateError,
    UnavailableError,
)
from localpuppet.base.formats.converter import JsonRecord
from localpuppet.base.formats.names import RunId
from localpuppet.base.formats.text import shortened
from localpuppet.base.formats.times import TimeText
from localpuppet.base.value import Value
from localpuppet.node.puppet.report import Resources

if TYPE_CHECKING:
    from localpuppet.node.puppet.fault import FailureCause


SCHEMA = 1
# Runs that are read to count the failed ones.
MAX_STREAK = 50
NOTHING_APPLIED = "Puppet applied nothing"
ATTEMPT_SCHEMA = 1
_SUBJECT = attrgetter("refusal", "reason", "release", "input", "user", "noop")


class RunState(StrEnum):
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


def show_resources(count: int) -> str:
    """Return `1 resource`, `2 resources`."""
    return f"{count} resource" if count == 1 else f"{count} resources"


def new_run_id(now: datetime, random: str, newest: str | None) -> RunId:
    """Return an id that sorts after `newest`, also when the clock was set back.

    Args:
        random: Four hex digits.
        newest: The latest id in the record, if any.
    """
    if newest:
        now = max(now, RunId.parse(newest).time + timedelta(microseconds=1))
    return RunId(f"{now.strftime('%Y%m%dT%H%M%S.%fZ')}-{random}")


class Status(JsonRecord):
    """`status.json`: the status of a run.

    Attributes:
        reason: Why it ended so, in one line.
        release: The release, or the name of a work tree.
        partial: Whether only some resources were selected (tags).
        part: The options that selected them; empty for a whole run.
        seconds: Duration by the monotonic clock.
        exit_code: Puppet's; `None` before its end, or when a signal killed it or it never started.
        noop_pending: Whether a noop run found something to change.
        supervisor: The supervisor's process: `{"pid", "boot_id", "started"}`.
        puppet: Puppet's process, the same keys; `None` before it started.
        work_tree: The directory of an unreleased work tree; empty for a release.
        repaired: Which files of the release were changed on the node and repaired before the run.
        failure_cause: As `node.puppet.fault.FailureCause` has it.
    """

    SCHEMA: ClassVar = SCHEMA
    id: RunId
    state: RunState
    outcome: Outcome | None = None
    reason: str = ""
    release: str
    noop: bool = False
    partial: bool = False
    started_at: TimeText
    finished_at: TimeText | None = None
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

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "Status":
        status = super().from_dict(raw)
        if (status.state is RunState.FINISHED) != (status.outcome is not None):
            raise StateError("is damaged: state and outcome contradict each other")
        return status

    def interrupted(self, reason: str) -> "Status":
        """Return this status closed as `interrupted`."""
        return replace(self, state=RunState.FINISHED, outcome=Outcome.INTERRUPTED, reason=reason)


class FailureStreak(Value):
    """Failed runs without a successful one between them; `MAX_STREAK` for that number or more.

    `since` is when the first of them ended.
    """

    since: str = ""
    runs: int = 0


def failure_streak(history: Iterable[Status]) -> FailureStreak:
    """Return the newest failed runs since the last success, without cancelled and active ones."""
    since, runs = "", 0
    for status in islice(history, MAX_STREAK):
        if status.succeeded:
            break
        if status.outcome not in (None, Outcome.CANCELLED):
            since, runs = status.finished_at or status.started_at, runs + 1
    return FailureStreak(since=since, runs=runs)


class RefusalKind(StrEnum):
    """Why an apply was refused."""

    INVALID_INPUT = "invalid_input"
    INTEGRITY = "integrity"
    UNAVAILABLE = "unavailable"
    BUSY = "busy"
    ON_HOLD = "on_hold"
    ENC = "enc"
    PUPPET_MISSING = "puppet_missing"
    MACHINE = "machine"


_KINDS: Mapping[type[Exception], RefusalKind] = {
    InvalidInputError: RefusalKind.INVALID_INPUT,
    IntegrityError: RefusalKind.INTEGRITY,
    UnavailableError: RefusalKind.UNAVAILABLE,
    BusyError: RefusalKind.BUSY,
    OnHoldError: RefusalKind.ON_HOLD,
    EncError: RefusalKind.ENC,
    PuppetMissingError: RefusalKind.PUPPET_MISSING,
}
# Each kind in words that may leave the node.
REFUSALS: Mapping[RefusalKind, str] = {
    RefusalKind.INVALID_INPUT: "invalid input",
    RefusalKind.INTEGRITY: "release not verified",
    RefusalKind.UNAVAILABLE: "source unreachable",
    RefusalKind.BUSY: "another run is on the node",
    RefusalKind.ON_HOLD: "the node is on hold",
    RefusalKind.ENC: "ENC failed",
    RefusalKind.PUPPET_MISSING: "Puppet is missing",
    RefusalKind.MACHINE: "the machine refused",
}


def refusal_cause(kind: RefusalKind, message: str) -> "FailureCause":
    """Return why Puppet was not started, in words that may leave the node."""
    from localpuppet.node.puppet.fault import FailureCause, normalized

    return FailureCause(error=f"{REFUSALS[kind]}: {normalized(message)}")


def refusal(error: Exception) -> RefusalKind:
    """Return the kind of refusal that an error means; `MACHINE` for any other error."""
    kinds = (kind for error_class, kind in _KINDS.items() if isinstance(error, error_class))
    return next(kinds, RefusalKind.MACHINE)


class Attempt(JsonRecord):
    """An apply that was refused; `times` counts equal refusals in a row, of which `at` is the last.

    `reason` is the line that the user saw; the release is empty where the input could not be read.
    """

    SCHEMA: ClassVar = ATTEMPT_SCHEMA
    at: TimeText
    since: TimeText
    times: int
    refusal: RefusalKind
    reason: str
    release: str
    input: str
    user: str
    cause: str
    noop: bool

    def repeats(self, other: "Attempt") -> bool:
        """Return whether all fields but the times and the count equal those of another attempt."""
        return _SUBJECT(self) == _SUBJECT(other)


# Characters of a published reason.
MAX_PUBLIC_REASON = 200


class Category(StrEnum):
    """Why a run ended as it did."""

    NONE = ""
    NOOP_PENDING = "noop_pending"
    NOT_STARTED = "not_started"
    NO_REPORT = "no_report"
    RESOURCES_FAILED = "resources_failed"
    RUN_FAILED = "run_failed"
    KILLED = "killed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


_WORDS = {
    Category.NONE: "",
    Category.NOT_STARTED: "Puppet was not started",
    Category.NO_REPORT: "Puppet wrote no report",
    Category.RUN_FAILED: "Puppet failed, or its exit code and its report disagree",
    Category.KILLED: "a signal killed Puppet",
    Category.TIMED_OUT: "ran longer than its timeout",
    Category.CANCELLED: "cancelled by a signal",
    Category.INTERRUPTED: "the supervisor died before the run ended",
}
_BY_OUTCOME = {
    Outcome.TIMED_OUT: Category.TIMED_OUT,
    Outcome.CANCELLED: Category.CANCELLED,
    Outcome.INTERRUPTED: Category.INTERRUPTED,
}


def category(status: Status) -> Category:
    """Return why a finished run ended as it did."""
    if status.outcome is None:
        return Category.NONE
    if status.outcome.success:
        return Category.NOOP_PENDING if status.noop_pending else Category.NONE
    if status.outcome in _BY_OUTCOME:
        return _BY_OUTCOME[status.outcome]
    if not status.puppet_started:
        return Category.NOT_STARTED
    if status.signal is not None:
        return Category.KILLED
    if status.resources is None:
        return Category.NO_REPORT
    return Category.RESOURCES_FAILED if status.resources.failed else Category.RUN_FAILED


def public_reason(status: Status) -> str:
    """Return the sentence for a run's category and its failure cause, without values."""
    why = category(status)
    resources = status.resources
    if why is Category.NOOP_PENDING:
        return f"noop: {show_resources(resources.out_of_sync if resources else 0)} would change"
    text = _WORDS.get(why, f"{show_resources(resources.failed if resources else 0)} failed")
    cause = status.failure_cause or {}
    if why is Category.NO_REPORT and cause.get("error") and not cause.get("resource"):
        text = "compile failed"
    for key, form in (("resource", ": {}"), ("place", " ({})"), ("error", ": {}")):
        text += form.format(cause[key]) if cause.get(key) else ""
    return shortened(text, MAX_PUBLIC_REASON)


def published(status: Status) -> Status:
    """Return a status as it may leave the node: without Puppet's own words."""
    return replace(status, reason=public_reason(status))
