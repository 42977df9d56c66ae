"""Roll a node that is cut off back: several attempts with growing pauses.

    decided -> the rollback is in force -> a run of it -> (a pause -> a run …)* -> back, or not

- The confirmation counts the failures and has the newest run that counts. A kill, a reboot or a
  short history of runs does not reset the count.
- `retreating` executes an attempt; `deciding` limits their number.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace

from localpuppet.base.formats.times import show_duration
from localpuppet.base.machine.ports import Clock
from localpuppet.fleet.agent.confirmation.decision import TRIES, pause_after
from localpuppet.fleet.agent.confirmation.pending import Confirmation
from localpuppet.fleet.agent.confirmation.retreat import RetreatService
from localpuppet.fleet.agent.runner import RequestedRunResult
from localpuppet.fleet.requests.confirmation import Stage
from localpuppet.node.enc.assignment import Assignment
from localpuppet.node.releases.ledger import Rollback

LOOK = 5.0  # seconds between two checks whether a run has ended
AGAIN = 30.0  # seconds until a requested run that has not begun is requested again
BUSY_AGAIN = 2.0  # seconds until the next attempt if the store is locked


@dataclass(slots=True, eq=False)
class ReturnRoute:
    """Takes one step after the other.

    Attributes:
        retreating: Executes the attempts.
        assigned: Returns the assignment in force.
        rollback: Returns the rollback in force.
        is_running: Returns whether a run is in progress.
    """

    retreating: RetreatService
    _: KW_ONLY
    assigned: Callable[[], Assignment | None]
    rollback: Callable[[], Rollback | None]
    is_running: Callable[[], bool]
    clock: Clock
    # The nonce for which the rollback was put in force.
    _in_force: str = field(default="", init=False)
    # The number of failed attempts when a run was requested.
    _asked: int = field(default=-1, init=False)
    _due: float = field(default=0.0, init=False)  # when the next attempt is due; 0 if unknown

    async def step(self, confirmation: Confirmation) -> tuple[Confirmation, float]:
        """Execute the next step.

        Args:
            confirmation: The confirmation; this node is rolling back.

        Returns:
            The updated confirmation, and the seconds until the next step.
        """
        if self._in_force != confirmation.nonce:
            left = self._due - self.clock.monotonic()
            if confirmation.tries and left > 0:
                return confirmation, left
            return await self._put_in_force(confirmation)
        rollback = self.rollback()
        if rollback is None or rollback.serial != confirmation.serial:
            return replace(
                confirmation, stage=Stage.SUPERSEDED, reason="the rollback was replaced or removed"
            ), 0.0
        runs = self.retreating.runs(confirmation, rollback)
        if runs and runs[0].good:
            return replace(confirmation, stage=Stage.ROLLED_BACK, reason=confirmation.silence), 0.0
        if runs:
            confirmation = replace(
                confirmation, newest=runs[0].id, tries=confirmation.tries + len(runs)
            )
            confirmation = self._after(
                confirmation, f"its run of {rollback.release} {runs[0].outcome}"
            )
            if confirmation.stage is not Stage.ROLLING_BACK:
                return confirmation, 0.0
        now = self.clock.monotonic()
        if now < self._due or self.is_running():
            return confirmation, LOOK
        if self._asked == confirmation.tries and not self.retreating.waits(confirmation):
            confirmation = replace(confirmation, tries=confirmation.tries + 1)
            return self._after(confirmation, f"its run of {rollback.release} did not begin"), 0.0
        self.retreating.ask_for_run(confirmation)
        self._asked, self._due = confirmation.tries, now + AGAIN
        return confirmation, LOOK

    def is_back(self, confirmation: Confirmation) -> bool:
        """Return whether the last run of the older release was good after all."""
        rollback = self.rollback()
        if rollback is None or rollback.serial != confirmation.serial:
            return False
        runs = self.retreating.runs(confirmation, rollback)
        return bool(runs) and runs[0].good

    async def _put_in_force(self, confirmation: Confirmation) -> tuple[Confirmation, float]:
        assignment = self.assigned()
        if assignment is None:
            return confirmation, LOOK
        end = await self.retreating.put_in_force(confirmation, assignment)
        if end.result is RequestedRunResult.BUSY:
            return confirmation, BUSY_AGAIN
        if end.result is not RequestedRunResult.OVER:
            return self._after(replace(confirmation, tries=confirmation.tries + 1), end.reason), 0.0
        begun = bool(confirmation.tries) and not self._due  # an earlier agent began to wait
        pause = pause_after(confirmation.tries) if begun else None
        self._due = self.clock.monotonic() + (pause or 0.0)
        self._in_force, self._asked = confirmation.nonce, -1
        return await self.step(confirmation)

    def _after(self, confirmation: Confirmation, failure: str) -> Confirmation:
        """Return the confirmation after a failed attempt, and schedule the next one."""
        pause = pause_after(confirmation.tries)
        if pause is None:
            why = f"{confirmation.silence}; {failure}, after {TRIES} attempts"
            return replace(confirmation, stage=Stage.ROLLBACK_FAILED, reason=why)
        self._due = self.clock.monotonic() + pause
        again = f"try {confirmation.tries + 1} of {TRIES} in {show_duration(pause)}"
        return replace(confirmation, reason=f"{confirmation.silence}; {failure}, {again}")
