"""Going back by ourselves to the last good release, through a rollout's hold if need be.

    decided -> the rollback is in force (in a child) -> a run of it -> how that ended

Owns: that this is done again after a kill until a run of the old release is on record. Refuses to
know: why we go back.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from itertools import takewhile
from typing import Protocol
from uuid import UUID, uuid5

from localpuppet.base.formats.json_file import read_json
from localpuppet.base.formats.times import parse_time, show_time
from localpuppet.base.machine.ports import Clock
from localpuppet.fleet.agent.agent import Agent
from localpuppet.fleet.agent.confirming.pending import Confirmation
from localpuppet.fleet.agent.runner import RunEnd
from localpuppet.fleet.triggers.cause import Cause, CauseKind
from localpuppet.fleet.triggers.inbox import Inbox
from localpuppet.node.enc.assignment import Assignment
from localpuppet.node.releases.ledger import Rollback
from localpuppet.node.runs.hold import Hold, rollout_owner
from localpuppet.node.runs.holds import Holds
from localpuppet.node.runs.records import Records, RunDirectory
from localpuppet.node.runs.run import State, Status

HOLD = 600.0  # seconds for which a hold lasts that is not renewed


@dataclass(frozen=True, slots=True, kw_only=True)
class Retreat:
    """What a child is to do.

    Attributes:
        left: The assignment that is left.
        because: Who decides, and why, in one line.
    """

    left: Assignment
    because: str


class RetreatRunner(Protocol):
    """Puts rollbacks in force; see `agent.fork_runner`."""

    async def run(self, order: Retreat) -> RunEnd:
        """Do so and return how it went; its fate is `OVER` where it is done."""
        ...


class Retreating:
    """Brings this node back.

    Args:
        runner: Puts the rollback in force.
        agent: Runs the older release.
        inbox: Remembers that such a run is to follow.
        records: The runs of this node.
        holds: Returns the holds on it.
        clock: The node's clock.
    """

    def __init__(
        self,
        runner: RetreatRunner,
        *,
        agent: Agent,
        inbox: Inbox,
        records: Records,
        holds: Callable[[], Holds],
        clock: Clock,
    ) -> None:
        self._runner = runner
        self._agent = agent
        self._inbox = inbox
        self._records = records
        self._holds = holds
        self._clock = clock

    async def put_in_force(self, found: Confirmation, left: Assignment) -> RunEnd:
        """Have the older release decide what this node runs; done twice it comes to the same.

        Args:
            found: What was not confirmed.
            left: Its assignment.
        """
        return await self._runner.run(Retreat(left=left, because=f"this node: {found.silence}"))

    def runs(self, found: Confirmation, rollback: Rollback) -> list[Status]:
        """Return the finished runs of the older release that are not counted yet, newest first."""
        return [
            status
            for status in takewhile(lambda one: one.id > found.newest, self._records.history())
            if status.state is State.FINISHED and not status.noop and status.app == rollback.app
        ]

    def ask_for_run(self, found: Confirmation) -> None:
        """Have a run follow, if none is on or waits; one that is asked for twice is one.

        A rollout's hold lets it through: it is a run of that rollout. A person's does not. Each try
        has a name of its own.

        Args:
            found: What was not confirmed.
        """
        owner = self.owner(found)
        if found.rollout and any(one.owner == owner for one in self._holds().active()):
            self.hold(found, f"rollout {found.rollout}: goes back, {found.silence}")
            now = int(self._clock.now().timestamp())
            cause = Cause(
                kind=CauseKind.ROLLOUT,
                sender=owner,
                uuid=_name(found),
                timestamp=now,
                expires=None,
            )
            self._inbox.accept([(cause, now)])
            self._agent.take_step(cause)
        elif self._agent.waiting is None:
            self._agent.request_run(CauseKind.CONFIRMATION)

    def waits(self, found: Confirmation) -> bool:
        """Return whether the requested run waits for a hold to end or for another run."""
        name = _name(found)
        asked = any(cause.uuid == name for cause in self._inbox.causes())
        return asked or self._agent.waiting is not None

    def owner(self, found: Confirmation) -> str:
        """Return who holds this node for what is not confirmed: its rollout where it has one."""
        if found.rollout:
            return rollout_owner(found.by, found.rollout)
        return f"{found.by}/confirmation"

    def hold(self, found: Confirmation, reason: str) -> None:
        """Hold this node for some minutes more, unless it is held for that long already."""
        now, owner = self._clock.now(), self.owner(found)
        mine = [one for one in self._holds().active() if one.owner == owner]
        half = now + timedelta(seconds=HOLD / 2)
        if any(one.until is None or parse_time(one.until) >= half for one in mine):
            return
        since = next((one.since for one in mine), show_time(now))
        until = show_time(now + timedelta(seconds=HOLD))
        self._holds().add(Hold(owner=owner, reason=reason, since=since, until=until))

    def let_go(self, found: Confirmation) -> None:
        """End what `hold` began; a rollout's own hold is that rollout's to end."""
        owner = self.owner(found)
        if not found.rollout and any(one.owner == owner for one in self._holds().active()):
            self._holds().remove(owner)


def _name(found: Confirmation) -> str:
    """Return under which id a rollout's run is asked for."""
    return str(uuid5(UUID(found.nonce), str(found.tries))) if found.tries else found.nonce


def first_run(records: Records, assignment: Assignment) -> Status | None:
    """Return the first run of an assignment that is over and could change something."""
    found = None
    for status in records.history():
        if status.id <= assignment.after:
            break
        if status.state is not State.FINISHED or status.noop or status.app != assignment.release:
            continue
        try:
            request = read_json(RunDirectory(records.directory / status.id).request)
        except FileNotFoundError:  # it was pruned meanwhile
            continue
        assigned = request.get("assignment")
        if isinstance(assigned, dict) and assigned.get("serial") == assignment.serial:
            found = status
    return found
