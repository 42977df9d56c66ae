"""Decide on a rollout's requests: its releases, its hold, and the runs that pass this hold.

- The reply to a step has its result, and the entry that later nodes wait for.
- `requests.admission` checks signature and rights; `agent.agent` runs a step.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime

from localpuppet.base.errors import BusyError, LocalpuppetError, OnHoldError
from localpuppet.base.formats.times import show_time
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.ports import Clock, LineKind, Log
from localpuppet.base.value import Value
from localpuppet.fleet.agent.agent import Agent, RequestedRunResult, RunCompletion, WorkRunner
from localpuppet.fleet.agent.jobs import Jobs
from localpuppet.fleet.inventory.outbox import AwaitedEntry
from localpuppet.fleet.requests.arguments import (
    Deploy,
    DeployAction,
    RolloutReference,
    RolloutStep,
    step_uuid,
)
from localpuppet.fleet.requests.request import RunOnce
from localpuppet.fleet.triggers.cause import CauseKind, RunCause
from localpuppet.fleet.triggers.inbox import Inbox, RolloutCaller, Step, StepState
from localpuppet.fleet.triggers.outcome import succeeded
from localpuppet.node.enc.assignment import Assignment
from localpuppet.node.runs.hold import Holds

# Limits of deployments that wait, are running, or have an unread result: in total, and per caller.
MOST, EACH = 16, 4
BUSY_AGAIN = 2.0
BUSY_TRIES = 30

WORKING: Mapping[str, Json] = {"state": "working"}
DONE: Mapping[str, Json] = {"state": "done"}
# Seconds after a noop run in which the node starts the run whose changes were approved.
FRESH = 120


class Deployment(Value):
    """The deployment that a child process executes.

    Attributes:
        caller: The caller id of the requester.
        args: The arguments of the request.
    """

    caller: str
    args: Deploy

    @property
    def owner(self) -> str | None:
        """Return the owner of the rollout's hold; `None` for a request outside of a rollout."""
        rollout = self.args.rollout
        return None if rollout is None else rollout.owner(self.caller)

    @property
    def assignment(self) -> Assignment:
        """Return the assignment for the node, in the name of the caller that began the rollout."""
        args = self.args
        whose = args.rollout.caller if args.rollout is not None else ""
        return Assignment(
            release=args.release,
            serial=args.serial,
            by=whose or self.caller,
            layers=args.layers,
            classes=args.classes,
            rollout="" if args.rollout is None else str(args.rollout.id),
            allow_older=args.allow_older,
        )

    @property
    def key(self) -> str:
        """Return a key that is equal for repeated requests, also from a later epoch."""
        asked = {**self.args.to_dict(), "rollout": self.assignment.rollout}
        return json.dumps([self.caller, asked], sort_keys=True)


@dataclass(slots=True, eq=False)
class Deployments:
    """Accepts and queues requests for deployments.

    Attributes:
        runner: Executes deployments.
        agent: Runs Puppet after an assignment.
        inbox: Remembers the epochs of rollouts.
        holds: Returns the holds on this node.
        log: The agent's log.
        busy_again: Seconds until the next attempt if the store is locked.
    """

    runner: WorkRunner[Deployment]
    _: KW_ONLY
    agent: Agent
    inbox: Inbox
    holds: Callable[[], Holds]
    log: Log
    busy_again: float = BUSY_AGAIN
    _one: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _jobs: Jobs[str] = field(
        default_factory=lambda: Jobs("deployments", most=MOST, each=EACH), init=False
    )

    def ask(self, caller: str, args: Deploy) -> Mapping[str, Json] | str:
        """Start a deployment, or return its state: `WORKING`, `DONE`, or why it failed.

        Raises:
            OnHoldError: Another rollout holds the node.
            BusyError: A newer epoch of the rollout is known, or too many deployments wait.
        """
        wanted = Deployment(caller=caller, args=args)
        if args.rollout is not None and wanted.owner is not None:
            rollout = args.rollout
            speaker = rollout.taken_over_by(caller)
            voice = RolloutCaller(owner=wanted.owner, epoch=rollout.epoch, speaker=speaker)
            self.inbox.receive_rollout(voice)
        self._check_holds(wanted)
        job_result = self._jobs.ask(wanted.key, caller, lambda: self._do(wanted))
        return WORKING if job_result is None else job_result or DONE

    def _check_holds(self, wanted: Deployment) -> None:
        """Reject a change of the release if another rollout holds the node."""
        if wanted.args.action is DeployAction.STAGE:
            return
        holds = self.holds().active()
        owner = wanted.owner
        if owner is not None and all(hold.owner != owner for hold in holds):
            raise BusyError("the rollout does not hold this node: its hold is over")
        others = [hold for hold in holds if hold.owner != owner and (owner or hold.of_rollout)]
        if others:
            raise OnHoldError(f"on hold: {others[0]}")

    async def _do(self, wanted: Deployment) -> str:
        """Execute a deployment and return the error, empty if it succeeded."""
        args = wanted.args
        what = f"{args.action} {args.release} for {wanted.owner or wanted.caller}"
        async with self._one:
            try:
                self._check_holds(wanted)  # holds may have changed while it waited
                end = await self._run(wanted)
            except LocalpuppetError as error:
                end = RunCompletion(result=RequestedRunResult.IMPOSSIBLE, reason=str(error))
            if end.result is RequestedRunResult.OVER:
                self.log.info(f"done: {what}", kind=LineKind.REQUEST)
                if args.action is not DeployAction.STAGE and args.rollout is None:
                    self.agent.request_run(CauseKind.REQUEST, sender=wanted.caller)
            else:
                self.log.warning(f"refused to {what}: {end.reason}", kind=LineKind.REQUEST)
        self.agent.recheck()
        return (
            ""
            if end.result is RequestedRunResult.OVER
            else end.reason or "the deployment was refused"
        )

    async def _run(self, wanted: Deployment) -> RunCompletion:
        end = await self.runner.run(wanted)
        for _ in range(BUSY_TRIES):
            if end.result is not RequestedRunResult.BUSY:
                break
            await asyncio.sleep(self.busy_again)
            end = await self.runner.run(wanted)
        return end


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

    def run(self, caller: str, args: RunOnce, rollout: RolloutStep) -> Mapping[str, Json]:
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
