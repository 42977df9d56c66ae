"""Whether a deployed release is confirmed, and the way back to the last good one.

- For a release that a person deployed, the node confirms when it reads its own nonce back from the
  bus.
- For a release that a rollout deployed, the rollout's caller confirms. If no caller does so in time
  and the rollout no longer holds the node, reading the nonce back is enough.
- If the bus answered one new connection since the run, the release has not cut the node off. Then
  the node waits, without a limit.
- If no new connection had an answer for the whole confirmation time, and none has one now, the
  node is cut off. An agent that has just started looks for some seconds itself, because a network
  needs time after a reboot.
- If a rollback fails, the node tries it again after longer and longer pauses, up to a limit. Then a
  person has to look.

    decided -> the rollback is in force (in a child) -> a run of it -> its result

- After a kill these steps are repeated, until a run of the older release is on record.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from itertools import takewhile
from uuid import UUID, uuid5

from localpuppet.base.formats.times import parse_time, show_duration, show_time
from localpuppet.base.machine.ports import Clock
from localpuppet.base.value import Value
from localpuppet.fleet.agent.agent import Agent, RequestedRunResult, WorkRunner
from localpuppet.fleet.agent.confirmation import Confirmation, Stage
from localpuppet.fleet.triggers.cause import CauseKind, RunCause
from localpuppet.fleet.triggers.inbox import Inbox
from localpuppet.node.enc.assignment import Assignment
from localpuppet.node.releases.ledger import Rollback
from localpuppet.node.runs.holds import Hold, Holds, rollout_owner
from localpuppet.node.runs.run import RunState, Status
from localpuppet.node.runs.run_records import Records, RunDirectory

# The number of rollback attempts, and the seconds after the first failure; each later pause is
# twice as long.
TRIES = 5
FIRST_PAUSE = 30.0
SETTLING = 20.0  # seconds for which an agent looks itself before it decides that the bus is silent


def pause_after(failed: int) -> float | None:
    """Return the seconds until the next rollback attempt; `None` for no further attempt."""
    return None if failed >= TRIES else FIRST_PAUSE * 2 ** (failed - 1)


class BusContact(StrEnum):
    """What the last look at the bus had as an answer, the best first."""

    READ_BACK = "read back"  # a new connection succeeded, and the bus returned this node's nonce
    CONNECTED = "connected"  # an address of the bus answers
    NOTHING = "nothing"


class ConfirmationDecision(StrEnum):
    """What the node does next."""

    CONFIRMED = "confirmed"
    WAIT = "wait"
    UNHEARD = "unheard"  # wait, and report that the caller is silent
    UNSERVED = "unserved"  # wait, hold the node, and report that the bus does not serve
    CUT_OFF = "cut off"  # roll back


class ConfirmationState(Value):
    """The facts for a decision.

    Attributes:
        waited: Seconds since the confirmation began.
        reached: Whether a new connection had an answer, now or earlier.
        looked: Seconds for which this agent has looked without an answer.
        by_rollout: Whether a rollout deployed the release.
        held: Whether that rollout holds the node.
    """

    reach: BusContact
    waited: float
    reached: bool
    looked: float
    by_rollout: bool
    held: bool


def decide(sight: ConfirmationState, *, within: float) -> ConfirmationDecision:
    """Return the verdict on a release that is not confirmed.

    Args:
        within: Seconds within which the confirmation must come.
    """
    late = sight.waited >= within
    if sight.reach is BusContact.READ_BACK:
        if not sight.by_rollout or (late and not sight.held):
            return ConfirmationDecision.CONFIRMED
        return ConfirmationDecision.UNHEARD if late else ConfirmationDecision.WAIT
    if not late:
        return ConfirmationDecision.WAIT
    if sight.reached or sight.reach is not BusContact.NOTHING:
        return ConfirmationDecision.UNSERVED
    return (
        ConfirmationDecision.CUT_OFF
        if sight.looked >= min(SETTLING, within)
        else ConfirmationDecision.WAIT
    )


LOOK = 5.0  # seconds between two checks whether a run has ended
AGAIN = 30.0  # seconds until a requested run that has not begun is requested again
BUSY_AGAIN = 2.0  # seconds until the next attempt if the store is locked


HOLD = 600.0  # seconds until a hold expires without renewal


class RetreatOrder(Value):
    """The rollback that a child process puts in force."""

    left: Assignment
    because: str


def _name(confirmation: Confirmation) -> str:
    """Return the id of the requested run of this attempt."""
    return (
        str(uuid5(UUID(confirmation.nonce), str(confirmation.tries)))
        if confirmation.tries
        else confirmation.nonce
    )


def first_run(records: Records, assignment: Assignment) -> Status | None:
    """Return the first finished run of an assignment that was not a noop run."""
    first = None
    for status in records.history():
        if status.id <= assignment.after:
            break
        if (
            status.state is not RunState.FINISHED
            or status.noop
            or status.release != assignment.release
        ):
            continue
        try:
            request = RunDirectory(records.directory / status.id).read_request()
        except FileNotFoundError:  # it was pruned meanwhile
            continue
        assigned = request.get("assignment")
        if isinstance(assigned, dict) and assigned.get("serial") == assignment.serial:
            first = status
    return first


@dataclass(slots=True, eq=False)
class ReturnRoute:
    """Rolls this node back, one step after the other.

    Attributes:
        runner: Puts the rollback in force.
        agent: Runs the older release.
        inbox: Remembers that a run is to follow.
        records: The records of this node's runs.
    """

    runner: WorkRunner[RetreatOrder]
    _: KW_ONLY
    agent: Agent
    inbox: Inbox
    records: Records
    holds: Callable[[], Holds]
    assigned: Callable[[], Assignment | None]
    rollback: Callable[[], Rollback | None]
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
        runs = self._runs(confirmation, rollback)
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
        if now < self._due or self.agent.is_running:
            return confirmation, LOOK
        if self._asked == confirmation.tries and not self._waits(confirmation):
            confirmation = replace(confirmation, tries=confirmation.tries + 1)
            return self._after(confirmation, f"its run of {rollback.release} did not begin"), 0.0
        self._ask_for_run(confirmation)
        self._asked, self._due = confirmation.tries, now + AGAIN
        return confirmation, LOOK

    def is_back(self, confirmation: Confirmation) -> bool:
        """Return whether the last run of the older release was good after all."""
        rollback = self.rollback()
        if rollback is None or rollback.serial != confirmation.serial:
            return False
        runs = self._runs(confirmation, rollback)
        return bool(runs) and runs[0].good

    async def _put_in_force(self, confirmation: Confirmation) -> tuple[Confirmation, float]:
        assignment = self.assigned()
        if assignment is None:
            return confirmation, LOOK
        end = await self.runner.run(
            RetreatOrder(left=assignment, because=f"this node: {confirmation.silence}")
        )
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

    def _runs(self, confirmation: Confirmation, rollback: Rollback) -> list[Status]:
        """Return the finished runs of the older release that are not counted yet, newest first."""
        return [
            status
            for status in takewhile(
                lambda status: status.id > confirmation.newest, self.records.history()
            )
            if status.state is RunState.FINISHED
            and not status.noop
            and status.release == rollback.release
        ]

    def _ask_for_run(self, confirmation: Confirmation) -> None:
        """Request a run unless one is in progress or waits; repeated requests count once.

        A rollout's hold does not stop this run, because it is a run of that rollout. A person's
        hold does. Each attempt has its own id.
        """
        owner = self.owner(confirmation)
        if confirmation.rollout and any(hold.owner == owner for hold in self.holds().active()):
            self.hold(
                confirmation, f"rollout {confirmation.rollout}: goes back, {confirmation.silence}"
            )
            now = int(self.clock.now().timestamp())
            cause = RunCause(
                kind=CauseKind.ROLLOUT,
                sender=owner,
                uuid=_name(confirmation),
                timestamp=now,
                expires=None,
            )
            self.inbox.accept([(cause, now)])
            self.agent.take_step(cause)
        elif self.agent.waiting is None:
            self.agent.request_run(CauseKind.CONFIRMATION)

    def _waits(self, confirmation: Confirmation) -> bool:
        """Return whether the requested run waits for a hold to end or for another run."""
        name = _name(confirmation)
        asked = any(cause.uuid == name for cause in self.inbox.causes())
        return asked or self.agent.waiting is not None

    def owner(self, confirmation: Confirmation) -> str:
        """Return the owner of the hold for an unconfirmed release: its rollout, if it has one."""
        if confirmation.rollout:
            return rollout_owner(confirmation.by, confirmation.rollout)
        return f"{confirmation.by}/confirmation"

    def hold(self, confirmation: Confirmation, reason: str) -> None:
        """Hold this node for some minutes, unless a hold of the same owner lasts long enough."""
        now, owner = self.clock.now(), self.owner(confirmation)
        mine = [hold for hold in self.holds().active() if hold.owner == owner]
        half = now + timedelta(seconds=HOLD / 2)
        if any(hold.until is None or parse_time(hold.until) >= half for hold in mine):
            return
        since = next((hold.since for hold in mine), show_time(now))
        until = show_time(now + timedelta(seconds=HOLD))
        self.holds().add(Hold(owner=owner, reason=reason, since=since, until=until))

    def let_go(self, confirmation: Confirmation) -> None:
        """Remove the hold of `hold`; only the rollout removes a rollout's hold."""
        owner = self.owner(confirmation)
        if not confirmation.rollout and any(hold.owner == owner for hold in self.holds().active()):
            self.holds().remove(owner)
