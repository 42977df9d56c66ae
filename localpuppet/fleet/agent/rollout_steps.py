"""What a rollout asks of this node: its hold, and the runs that go through that hold.

Owns: which of these are taken, and what is told of a step: how it ended, and which entry it left
for those who run after it. Refuses to know: signatures and rights
(`requests.admission`), how a step is run (`agent.agent`).
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from localpuppet.base.errors import BusyError, LocalpuppetError, OnHoldError
from localpuppet.base.formats.times import show_time
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.ports import Clock
from localpuppet.fleet.agent.agent import Agent
from localpuppet.fleet.inventory.awaited import Awaited
from localpuppet.fleet.requests.request import RunOnce
from localpuppet.fleet.requests.rollout import OfRollout, step_uuid
from localpuppet.fleet.triggers.cause import Cause, CauseKind
from localpuppet.fleet.triggers.inbox import Inbox
from localpuppet.fleet.triggers.outcome import succeeded
from localpuppet.fleet.triggers.step_table import Step, StepState, Voice
from localpuppet.node.runs.holds import Holds

# Seconds after its noop run in which a node begins the run whose changes were approved.
FRESH = 120


class _StaleLookError(LocalpuppetError):
    """The noop run that a step relies on was too long ago."""


class RolloutSteps:
    """Where rollouts' requests are decided.

    Args:
        agent: Runs the steps.
        inbox: Remembers them.
        holds: Returns the holds on this node.
        clock: The node's clock.
        entry: Returns what this node's newest entry is awaited by; `None` where there is none.
        awaits: Returns whether this node can wait for entries of others.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        inbox: Inbox,
        holds: Callable[[], Holds],
        clock: Clock,
        entry: Callable[[], Awaited | None],
        awaits: Callable[[], bool],
    ) -> None:
        self._agent = agent
        self._inbox = inbox
        self._holds = holds
        self._clock = clock
        self._entry = entry
        self._awaits = awaits

    def awaits_entries(self) -> bool:
        """Return whether this node can wait for entries of others."""
        return self._awaits()

    def hear(self, caller: str, rollout: OfRollout) -> None:
        """Note that a rollout speaks to this node, by its own caller or who took it over.

        Raises:
            BusyError: A newer epoch of it is known, or another speaker in this one.
            StateError: It cannot be remembered.
        """
        self._inbox.hear_rollout(_voice(caller, rollout))

    def speaks(self, owner: str) -> dict[str, Json]:
        """Return who spoke for a rollout last, by what `hear` noted; nothing where nobody did."""
        found = self._inbox.speaks(owner)
        if found is None:
            return {}
        voice, at = found
        since = show_time(datetime.fromtimestamp(at, UTC))
        return {"epoch": voice.epoch, "by": voice.speaker, "since": since}

    def check_hold(self, owner: str) -> None:
        """Refuse a hold where somebody else has one: of two rollouts the first has the node.

        A rollout that has its hold keeps it, whoever came since.

        Raises:
            OnHoldError: Somebody else holds the node.
        """
        holds = self._holds().active()
        if holds and all(hold.owner != owner for hold in holds):
            raise OnHoldError(f"on hold: {holds[0]}")

    def run(self, caller: str, args: RunOnce, rollout: OfRollout) -> Mapping[str, Json]:
        """Take a step, or tell what became of it: a step runs once.

        A step that relies on an earlier noop run is taken only soon after that. If it is not, the
        answer is `look_again`, and the node has not run.

        Raises:
            OnHoldError: The rollout does not hold the node, or not alone.
            BusyError: A newer epoch of the rollout is known, or another speaker in this one.
        """
        owner = rollout.owner(caller)
        cause = Cause(
            kind=CauseKind.ROLLOUT,
            sender=owner,
            uuid=step_uuid(owner, rollout.step),
            timestamp=int(self._clock.now().timestamp()),
            expires=None,
            noop=args.noop,
            puppet_tags=args.tags,
            after=args.after,
        )
        stale = _StaleLookError("its look was too long ago") if self._stale(owner, args) else None
        try:
            step = self._inbox.step(
                cause,
                rollout.step,
                voice=_voice(caller, rollout),
                problem=lambda: self._problem(owner) or stale,
            )
        except _StaleLookError:
            return {"accepted": False, "look_again": True}
        if step.new:
            self._agent.take_step(cause)
        return {"accepted": True, "step": step.step.to_dict(), **self._left(step.step, args)}

    def _stale(self, owner: str, args: RunOnce) -> bool:
        if not args.looked:
            return False
        ended, now = self._inbox.ended(owner, args.looked), self._clock.now().timestamp()
        return ended is None or not 0 <= now - ended <= FRESH

    def _left(self, step: Step, args: RunOnce) -> Mapping[str, Json]:
        """Return the entry that others are to know of; a run that was not whole leaves none."""
        whole = not (args.noop or args.tags)
        if step.state is not StepState.OVER or not whole or not succeeded(step.outcome):
            return {}
        entry = self._entry()
        return {} if entry is None else {"entry": entry.to_dict()}

    def _problem(self, owner: str) -> LocalpuppetError | None:
        holds = self._holds().active()
        if all(hold.owner != owner for hold in holds):
            return BusyError("the rollout does not hold this node: its hold is over")
        others = [hold for hold in holds if hold.owner != owner]
        return OnHoldError(f"on hold: {others[0]}") if others else None


def _voice(caller: str, rollout: OfRollout) -> Voice:
    return Voice(
        owner=rollout.owner(caller), epoch=rollout.epoch, speaker=rollout.taken_over_by(caller)
    )
