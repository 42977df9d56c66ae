"""The steps of rollouts that wait on a node: which of them may run now, and which never will.

Owns: that a step runs alone, through no hold but its own rollout's. Refuses to know: files, and
how a step came to be accepted.
"""

from dataclasses import dataclass

from localpuppet.runs.hold import Held
from localpuppet.triggers.cause import Cause
from localpuppet.triggers.coalescing import Drop


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What is to be done now.

    Attributes:
        due: Run this step.
        dropped: Log these, then forget them.
    """

    due: Cause | None = None
    dropped: tuple[Drop, ...] = ()


class Steps:
    """The steps that were accepted and are not over."""

    def __init__(self) -> None:
        self._waiting: dict[str, Cause] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, cause: Cause) -> None:
        """Have a step wait for its turn; it is on the disk by now."""
        self._waiting[cause.id] = cause

    def forget(self, identifier: str) -> None:
        """Forget a cause that is over, if it was a step."""
        self._waiting.pop(identifier, None)

    def look(self, held: Held | None) -> Look:
        """Decide what is to be done while no run is on.

        Args:
            held: Why the node does not run for now.
        """
        owners = frozenset() if held is None else held.rollouts
        late = [one for one in self._waiting.values() if one.sender not in owners]
        due = None
        if held is not None and held.alone:
            due = next((one for one in self._waiting.values() if one.sender in owners), None)
        reason = "its rollout does not hold this node any more"
        return Look(due=due, dropped=tuple(Drop(id=one.id, reason=reason) for one in late))
