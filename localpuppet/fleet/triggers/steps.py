"""The steps of rollouts that wait on a node: which may run now, and which never will.

A step runs alone, through no hold except its rollout's, and only when this node knows the entries
of the nodes that ran before it. It waits for these for `PATIENCE` seconds.
"""

from collections.abc import Callable

from localpuppet.base.formats.times import show_duration
from localpuppet.base.value import Value
from localpuppet.fleet.triggers.cause import RunCause
from localpuppet.fleet.triggers.coalescing import DroppedCause
from localpuppet.node.runs.hold import HoldStatus

# Seconds for which a step waits for entries of other nodes.
PATIENCE = 120.0


class StepAction(Value):
    """The next actions.

    Attributes:
        due: Run this step.
        dropped: Log these, then forget them.
    """

    due: RunCause | None = None
    dropped: tuple[DroppedCause, ...] = ()


class Steps:
    """The accepted steps that are not over.

    Args:
        lacking: Returns the missing entries that a step waits for, in one line; empty if there are
            none missing.
    """

    def __init__(self, lacking: Callable[[RunCause], str]) -> None:
        self._lacking = lacking
        self._waiting: dict[str, RunCause] = {}

    @property
    def await_entries(self) -> bool:
        """Whether a step waits for entries of other nodes, or did."""
        return any(cause.awaited_entries for cause in self._waiting.values())

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, cause: RunCause) -> None:
        """Add a step, which the inbox has stored."""
        self._waiting[cause.id] = cause

    def forget(self, identifier: str) -> None:
        """Forget a cause that is over, if it was a step."""
        self._waiting.pop(identifier, None)

    def look(self, held: HoldStatus | None, *, now: float) -> StepAction:
        """Return the next actions; call it while no run is active.

        Args:
            held: Why the node is on hold.
            now: Seconds since 1970, UTC.
        """
        owners = frozenset() if held is None else held.rollouts
        late = [cause for cause in self._waiting.values() if cause.sender not in owners]
        due = None
        if held is not None and held.alone:
            due = next((cause for cause in self._waiting.values() if cause.sender in owners), None)
        reason = "its rollout no longer holds this node"
        dropped = [DroppedCause(id=cause.id, reason=reason) for cause in late]
        if due is not None and due.awaited_entries and (missing := self._lacking(due)):
            if now - due.timestamp >= PATIENCE:
                dropped.append(DroppedCause(id=due.id, reason=_unknown(missing)))
            due = None
        return StepAction(due=due, dropped=tuple(dropped))


def _unknown(missing: str) -> str:
    return (
        f"the inventory entries of earlier nodes did not arrive within {show_duration(PATIENCE)}:"
        f" {missing}"
    )
