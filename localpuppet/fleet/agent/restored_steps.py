"""The rollout steps that an earlier agent began, until their runs have ended.

- A step that began does not begin again. Its result is the result in the record, even if the run
  ends after this agent has started.
"""

from collections.abc import Callable

from localpuppet.fleet.agent.runner import RequestedRunResult, RunCompletion
from localpuppet.fleet.triggers.cause import RunCause
from localpuppet.fleet.triggers.outcome import INTERRUPTED
from localpuppet.node.runs.records import Records
from localpuppet.node.runs.run import RunState

_UNKNOWN = RunCompletion(
    result=RequestedRunResult.OVER,
    outcome=INTERRUPTED,
    reason="the agent was killed during the run",
)


class RestoredSteps:
    """The steps whose result this agent has not reported yet.

    Args:
        begun: Returns the state of the run of a cause; `None` without a record.
    """

    def __init__(self, begun: Callable[[RunCause], RunCompletion | None]) -> None:
        self._begun = begun
        self._running: list[RunCause] = []

    def add(self, cause: RunCause) -> None:
        """Add a step that began."""
        self._running.append(cause)

    def take_ended(self) -> list[tuple[RunCause, RunCompletion]]:
        """Return each step whose run has ended, once."""
        ended = [(cause, self._begun(cause) or _UNKNOWN) for cause in self._running]
        self._running = [cause for cause, end in ended if end.result is RequestedRunResult.BUSY]
        return [(cause, end) for cause, end in ended if end.result is not RequestedRunResult.BUSY]


def recorded_end(records: Records, cause: RunCause) -> RunCompletion | None:
    """Return the recorded result of the run of a cause; `BUSY` while it is running."""
    status = records.caused_by(cause.sender, cause.uuid)
    if status is None:
        return None
    over = status.state is RunState.FINISHED
    return RunCompletion(
        result=RequestedRunResult.OVER if over else RequestedRunResult.BUSY,
        run=status.id,
        outcome=str(status.outcome or ""),
        reason=status.reason,
    )
