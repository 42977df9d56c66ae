"""How a run ended: the one form in which presence, history and all views have it.

The node decides it once, when the run ends: the result, the failure cause, since when its runs
fail. It signs it in each run summary and, of the newest run, in its presence. Views copy nothing
of it.

- It has no values: the failure cause is that of `node.puppet.fault`, and the reason is a fixed
  sentence with it.
- It cannot be made with a text or a number beyond its limit, so one from another node has the
  limits of `bus_limits`, too.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import RunId
from localpuppet.base.formats.text import one_line, shortened
from localpuppet.base.formats.times import parse_time
from localpuppet.fleet.bus.bus_limits import MAX_RUN_COUNT, MAX_RUN_TEXT
from localpuppet.node.puppet.fault import FailureCause
from localpuppet.node.runs import run as runs
from localpuppet.node.runs.run import category

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# Digits of the key of a failure cause.
FAILURE_CAUSE_DIGITS = 16
GOOD, CHANGED, BAD = "no change", "changed", "failed"
PARTS = (BAD, CHANGED, GOOD)
# Refusals that do not mean a failure: the run takes place later.
LATER = (runs.RefusalKind.BUSY, runs.RefusalKind.ON_HOLD)
_NUMBER = re.compile(r"\d+")


class Kind(StrEnum):
    """The result of a node's last run."""

    COMPILE_FAILED = "compile failed"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    INTERRUPTED = "interrupted"
    REFUSED = "refused"
    CANCELLED = "cancelled"
    CHANGED = "changed"
    CORRECTED = "corrected"
    UNCHANGED = "unchanged"
    NOOP_PENDING = "noop pending"
    NOOP_CLEAN = "noop clean"
    NONE = "no run"
    UNKNOWN = "unknown"

    @property
    def bad(self) -> bool:
        """Whether the result needs attention."""
        return self in _BAD

    @property
    def part(self) -> str:
        """Return what charts and filters count the result for: `GOOD`, `CHANGED` or `BAD`."""
        return BAD if self.bad else CHANGED if self in (Kind.CHANGED, Kind.CORRECTED) else GOOD

    @property
    def place(self) -> int:
        """Return the place of the result in a list that is sorted by results."""
        return _PLACES[self]

    @property
    def style(self) -> str:
        """Return the word as a class of the style sheet."""
        return self.value.replace(" ", "-")


_PLACES = {kind: place for place, kind in enumerate(Kind)}
_BAD = frozenset({Kind.COMPILE_FAILED, Kind.FAILED, Kind.TIMED_OUT, Kind.INTERRUPTED, Kind.REFUSED})
_BY_OUTCOME = {
    runs.Outcome.TIMED_OUT: Kind.TIMED_OUT,
    runs.Outcome.CANCELLED: Kind.CANCELLED,
    runs.Outcome.INTERRUPTED: Kind.INTERRUPTED,
}


def check_texts(value: "DataclassInstance") -> None:
    """Check that each text of a dataclass is one line of at most `MAX_RUN_TEXT` characters."""
    for name in _names(type(value)):
        text = getattr(value, name)
        if isinstance(text, str) and (len(text) > MAX_RUN_TEXT or not _is_line(text)):
            raise InvalidInputError(f"is no line of up to {MAX_RUN_TEXT} characters", where=name)


@cache
def _names(form: "type[DataclassInstance]") -> tuple[str, ...]:
    return tuple(field.name for field in fields(form))


def _is_line(text: str) -> bool:
    # The first check decides nearly all texts, in a tenth of the time.
    return (text.isascii() and text.isprintable()) or one_line(text) == text


def check_counts(*numbers: int) -> None:
    """Check that numbers are neither negative nor above `MAX_RUN_COUNT`."""
    if not all(0 <= number <= MAX_RUN_COUNT for number in numbers):
        raise InvalidInputError(f"has a number that is not from 0 to {MAX_RUN_COUNT}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """The end of a run, or of an apply that was refused before it had a record.

    Attributes:
        run: The run's id; for a refused apply an id that equal refusals in a row share.
        release: The release, `foo/tags/r1`; empty or `?` if unknown. If a refused apply had none,
            that of the run before.
        started_at: Of refusals in a row, the start of the first.
        finished_at: Of refusals in a row, the end of the last.
        times: How often it was refused in a row; 1 for a run.
        corrective_change: Whether Puppet restored an earlier value.
        reason: A fixed sentence, which may end with the failure cause, or empty.
        failing_since: When the first run failed after the last good one.
        failed_runs: How many runs have failed since then, refusals included.
    """

    run: RunId
    release: str
    started_at: float
    finished_at: float
    outcome: runs.Outcome | None = None
    category: runs.Category = runs.Category.NONE
    refusal: runs.RefusalKind | None = None
    times: int = 1
    noop: bool
    corrective_change: bool = False
    reason: str
    failure_cause: FailureCause | None = None
    failing_since: float | None = None
    failed_runs: int = 0
    run_interval: float | None = None

    def __post_init__(self) -> None:
        check_texts(self)
        check_counts(self.times, self.failed_runs)
        if self.failure_cause is not None:
            check_texts(self.failure_cause)
        if (self.outcome is None) == (self.refusal is None):
            raise InvalidInputError("has an outcome and a refusal, or neither")
        if not 0 <= self.started_at <= self.finished_at:
            raise InvalidInputError("ended before it started")
        if not 0 <= (self.failing_since or 0) <= self.finished_at:
            raise InvalidInputError("began to fail after its end")
        if self.run_interval is not None and self.run_interval <= 0:
            raise InvalidInputError("has no positive interval")

    @classmethod
    def of_run(
        cls, status: runs.Status, streak: runs.FailureStreak, interval: float | None
    ) -> "RunEnd":
        """Return the end of a finished run."""
        begun = parse_time(status.started_at).timestamp()
        end = parse_time(status.finished_at or status.started_at).timestamp()
        since = parse_time(streak.since).timestamp() if streak.since else None
        cause = status.failure_cause
        return cls(
            run=status.id,
            release=shortened(status.release, MAX_RUN_TEXT),
            started_at=min(begun, end),  # the clock may have been set back
            finished_at=end,
            outcome=status.outcome or runs.Outcome.INTERRUPTED,
            category=category(status),
            noop=status.noop,
            corrective_change=status.corrective_change,
            reason=shortened(runs.public_reason(status), MAX_RUN_TEXT),
            failure_cause=None if cause is None else FailureCause(**cause),
            failing_since=None if since is None else min(since, end),
            failed_runs=streak.runs,
            run_interval=interval,
        )

    @classmethod
    def of_attempt(
        cls, attempt: runs.Attempt, before: "RunEnd | None", interval: float | None
    ) -> "RunEnd":
        """Return the end of a refused apply after a run; equal refusals in a row share an id."""
        since, last = parse_time(attempt.since), parse_time(attempt.at)
        subject = "\0".join((attempt.refusal, attempt.reason, attempt.release, attempt.input))
        digits = hashlib.sha256(subject.encode("utf-8", "replace")).hexdigest()[:4]
        begun, end = min(since, last).timestamp(), last.timestamp()
        times = min(attempt.times, MAX_RUN_COUNT)
        failing_since = begun if before is None else before.failing_since or begun
        return cls(
            run=runs.new_run_id(since, digits, None),
            release=shortened(attempt.release or (before.release if before else ""), MAX_RUN_TEXT),
            started_at=begun,
            finished_at=end,
            refusal=attempt.refusal,
            times=times,
            noop=attempt.noop,
            reason=runs.REFUSALS[attempt.refusal],
            failure_cause=runs.refusal_cause(attempt.refusal, attempt.reason),
            failing_since=min(failing_since, end),
            failed_runs=min(times + (before.failed_runs if before else 0), MAX_RUN_COUNT),
            run_interval=interval,
        )

    @property
    def kind(self) -> Kind:
        """The result in the word that all views show, count and filter by."""
        if self.outcome is None:
            return Kind.REFUSED
        if self.outcome is runs.Outcome.FAILED:
            no_report = self.category is runs.Category.NO_REPORT
            return Kind.COMPILE_FAILED if no_report else Kind.FAILED
        if self.outcome is runs.Outcome.CHANGED:
            return Kind.CORRECTED if self.corrective_change else Kind.CHANGED
        if self.outcome is runs.Outcome.UNCHANGED and self.noop:
            pending = self.category is runs.Category.NOOP_PENDING
            return Kind.NOOP_PENDING if pending else Kind.NOOP_CLEAN
        return _BY_OUTCOME.get(self.outcome, Kind.UNCHANGED)

    @property
    def shown_cause(self) -> FailureCause:
        """The failure cause of a failed run; an empty one for any other."""
        return (self.failure_cause if self.kind.bad else None) or _NO_CAUSE

    @property
    def failure(self) -> str:
        """The failure in the same words for each node; empty unless the run failed."""
        if not self.kind.bad:
            return ""
        return self.shown_cause.error or _NUMBER.sub("…", self.reason) or self.kind.value

    @property
    def failure_key(self) -> str:
        """A short key of the failure and its place, by which failures are grouped, or empty."""
        if not self.kind.bad:
            return ""
        text = f"{self.failure}\n{self.shown_cause.place}"
        return hashlib.sha256(text.encode()).hexdigest()[:FAILURE_CAUSE_DIGITS]


_NO_CAUSE = FailureCause(error="")


def newest(ends: Iterable[RunEnd]) -> RunEnd | None:
    """Return the end that says how a node is: the last one; `None` without any.

    A refusal does not count if the run takes place later.
    """
    counted = (end for end in ends if end.refusal not in LATER)
    return max(counted, key=lambda end: end.finished_at, default=None)
