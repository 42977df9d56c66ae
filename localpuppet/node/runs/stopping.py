"""When a running run is ended, and how: TERM, then KILL, then giving up.

A pure state machine over the time and the number of signals.
"""

from enum import Enum

from localpuppet.base.formats.times import show_duration
from localpuppet.node.runs.run import Outcome
from localpuppet.node.runs.verdict import RunVerdict


class StopStep(Enum):
    """The action to take now."""

    NOTHING = "nothing"
    TERM = "term"
    KILL = "kill"
    ABANDON = "abandon"


class StopDecision:
    """Decides when to stop one run.

    Args:
        started: Monotonic seconds.
        timeout: Seconds after which the run is stopped.
        grace: Seconds between TERM and KILL, and between KILL and giving up.
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
