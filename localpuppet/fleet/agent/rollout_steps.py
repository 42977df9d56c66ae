"""Decide on a rollout's requests: its hold, and the runs that pass this hold.

- The reply to a step has its result, and the entry that later nodes wait for.
- `requests.admission` checks signature and rights; `agent.agent` runs a step.
"""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime

from localpuppet.base.errors import BusyError, LocalpuppetError, OnHoldError
from localpuppet.base.formats.times import show_time
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.ports import Clock
from localpuppet.fleet.agent.agent import Agent
from localpuppet.fleet.inventory.awaited_entry import AwaitedEntry
from localpuppet.fleet.requests.request import RunOnce
from localpuppet.fleet.requests.rollout import RolloutReference, step_uuid
from localpuppet.fleet.triggers.cause import CauseKind, RunCause
from localpuppet.fleet.triggers.inbox import Inbox
from localpuppet.fleet.triggers.outcome import succeeded
from localpuppet.fleet.triggers.step_table import RolloutCaller, Step, StepState
from localpuppet.node.runs.holds import Holds

# Seconds after a noop run in which the node starts the run whose changes were approved.
FRESH = 120


class _StaleLookError(LocalpuppetError):
    """The noop run that a step relies on is too old."""


@dataclass(frozen=True, slots=True)
class RolloutSteps:
    """Decides on the requests of rollouts.

    Attributes:
        agent: Runs the steps.
        inbox: Remembers the steps.
        holds: Returns the holds on this node.
        clock: The node's clock.
        entry: Returns the reference to this node's newest entry; `None` without an entry.
        awaits_entries: Returns whether this node can wait for entries of other nodes.
    """

    agent: Agent
    _: KW_ONLY
    inbox: Inbox
    holds: Callable[[], Holds]
    clock: Clock
    entry: Callable[[], AwaitedEntry | None]
    awaits_entries: Callable[[], bool]

    def hear(self, caller: str, rollout: RolloutReference) -> None:
        """Record that a rollout sent a request, with its epoch and its current controller.

        Raises:
            BusyError: A newer epoch of the rollout is known, or another controller in this epoch.
        """
        self.inbox.receive_rollout(_voice(caller, rollout))

    def speaks(self, owner: str) -> dict[str, Json]:
        """Return the last recorded controller of a rollout and its epoch, empty without one."""
        report = self.inbox.speaks(owner)
        if report is None:
            return {}
        voice, at = report
        since = show_time(datetime.fromtimestamp(at, UTC))
        return {"epoch": voice.epoch, "by": voice.speaker, "since": since}

    def check_hold(self, owner: str) -> None:
        """Reject a hold if the node has other holds only: the first rollout keeps the node.

        Raises:
            OnHoldError: Another owner holds the node.
        """
        holds = self.holds().active()
        if holds and all(hold.owner != owner for hold in holds):
            raise OnHoldError(f"on hold: {holds[0]}")

    def run(self, caller: str, args: RunOnce, rollout: RolloutReference) -> Mapping[str, Json]:
        """Take a step, or return its result: a step runs once.

        A step that relies on a noop run must follow soon after it. Otherwise the answer is
        `repeat_noop`, and the node does not run.

        Raises:
            OnHoldError: Another owner holds the node too.
            BusyError: The rollout's hold is over, a newer epoch of the rollout is known, or another
                controller in this epoch.
        """
        owner = rollout.owner(caller)
        cause = RunCause(
            kind=CauseKind.ROLLOUT,
            sender=owner,
            uuid=step_uuid(owner, rollout.step),
            timestamp=int(self.clock.now().timestamp()),
            expires=None,
            noop=args.noop,
            puppet_tags=args.tags,
            awaited_entries=args.awaited_entries,
        )
        stale = _StaleLookError("its noop run is too old") if self._stale(owner, args) else None
        try:
            step = self.inbox.step(
                cause,
                rollout.step,
                voice=_voice(caller, rollout),
                problem=lambda: self._problem(owner) or stale,
            )
        except _StaleLookError:
            return {"accepted": False, "repeat_noop": True}
        if step.new:
            self.agent.take_step(cause)
        return {"accepted": True, "step": step.step.to_dict(), **self._left(step.step, args)}

    def _stale(self, owner: str, args: RunOnce) -> bool:
        if not args.noop_step:
            return False
        ended, now = self.inbox.ended(owner, args.noop_step), self.clock.now().timestamp()
        return ended is None or not 0 <= now - ended <= FRESH

    def _left(self, step: Step, args: RunOnce) -> Mapping[str, Json]:
        """Return the entry that other nodes wait for; only a successful, complete run has one."""
        whole = not (args.noop or args.tags)
        if step.state is not StepState.OVER or not whole or not succeeded(step.outcome):
            return {}
        entry = self.entry()
        return {} if entry is None else {"entry": entry.to_dict()}

    def _problem(self, owner: str) -> LocalpuppetError | None:
        holds = self.holds().active()
        if all(hold.owner != owner for hold in holds):
            return BusyError("the rollout does not hold this node: its hold is over")
        others = [hold for hold in holds if hold.owner != owner]
        return OnHoldError(f"on hold: {others[0]}") if others else None


def _voice(caller: str, rollout: RolloutReference) -> RolloutCaller:
    return RolloutCaller(
        owner=rollout.owner(caller), epoch=rollout.epoch, speaker=rollout.taken_over_by(caller)
    )
