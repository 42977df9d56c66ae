"""Roll this node back to the last good release, if need be through a rollout's hold.

    decided -> the rollback is in force (in a child) -> a run of it -> its result

- After a kill these steps are repeated, until a run of the older release is on record.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from itertools import takewhile
from uuid import UUID, uuid5

from localpuppet.base.formats.times import parse_time, show_time
from localpuppet.base.machine.ports import Clock
from localpuppet.fleet.agent.agent import Agent
from localpuppet.fleet.agent.confirmation.pending import Confirmation
from localpuppet.fleet.agent.runner import RunCompletion, WorkRunner
from localpuppet.fleet.triggers.cause import CauseKind, RunCause
from localpuppet.fleet.triggers.inbox import Inbox
from localpuppet.node.enc.assignment import Assignment
from localpuppet.node.releases.ledger import Rollback
from localpuppet.node.runs.hold import Hold, rollout_owner
from localpuppet.node.runs.holds import Holds
from localpuppet.node.runs.records import Records, RunDirectory
from localpuppet.node.runs.run import RunState, Status

HOLD = 600.0  # seconds until a hold expires without renewal


@dataclass(frozen=True, slots=True, kw_only=True)
class RetreatOrder:
    """The rollback that a child process puts in force.

    Attributes:
        left: The assignment to leave.
        because: The decider and the reason, in one line.
    """

    left: Assignment
    because: str


@dataclass(frozen=True, slots=True)
class RetreatService:
    """Rolls this node back.

    Attributes:
        runner: Puts the rollback in force.
        agent: Runs the older release.
        inbox: Remembers that a run is to follow.
        records: The records of this node's runs.
        holds: Returns the holds on this node.
    """

    runner: WorkRunner[RetreatOrder]
    _: KW_ONLY
    agent: Agent
    inbox: Inbox
    records: Records
    holds: Callable[[], Holds]
    clock: Clock

    async def put_in_force(self, confirmation: Confirmation, left: Assignment) -> RunCompletion:
        """Put the rollback in force; repeating this is harmless.

        Args:
            confirmation: The confirmation that did not come.
            left: Its assignment.
        """
        return await self.runner.run(
            RetreatOrder(left=left, because=f"this node: {confirmation.silence}")
        )

    def runs(self, confirmation: Confirmation, rollback: Rollback) -> list[Status]:
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

    def ask_for_run(self, confirmation: Confirmation) -> None:
        """Request a run unless one is in progress or waits; repeated requests count once.

        A rollout's hold does not stop this run, because it is a run of that rollout. A person's
        hold does. Each attempt has its own id.

        Args:
            confirmation: The confirmation that did not come.
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

    def waits(self, confirmation: Confirmation) -> bool:
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
