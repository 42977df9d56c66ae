"""Decide on a rollout's requests: its releases, its hold, and the runs that pass this hold.

    ask -> `None` … ask -> `None` … ask -> the result

- The number of jobs is limited in total and per caller.
- A result is returned once. If a limit is reached, the oldest unread results are removed; the same
  request then repeats the job.
- One compilation runs at a time, in a child process. A reply never waits for Puppet.
- The result has references and parameter names, never values.
- The reply to a step has its result, and the entry that later nodes wait for.
- An entry that names exports counts only when these exports are on this node too, because
  collectors of the step must find them.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from localpuppet.base.errors import BusyError, LocalpuppetError, OnHoldError, StateError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.times import show_time
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.ports import Clock, LineKind, Log
from localpuppet.base.value import Value
from localpuppet.fleet.agent.agent import Agent, RequestedRunResult, RunCompletion, WorkRunner
from localpuppet.fleet.exports.held import HeldExports
from localpuppet.fleet.inventory.outbox import AwaitedEntry, ViewedNode, lacking
from localpuppet.fleet.inventory.view import View
from localpuppet.fleet.requests import request as messages
from localpuppet.fleet.requests.request import RunOnce
from localpuppet.fleet.triggers.cause import CauseKind, RunCause, succeeded
from localpuppet.fleet.triggers.inbox import Inbox, RolloutCaller, Step, StepState
from localpuppet.node.enc.assignment import Assignment
from localpuppet.node.runs.holds import Hold, Holds

Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True)
class _Job(Generic[Outcome]):
    """A job in progress."""

    caller: str
    task: "asyncio.Task[Outcome]"


class Jobs(Generic[Outcome]):
    def __init__(self, what: str, *, most: int, each: int) -> None:
        self._what = what
        self._most = most
        self._each = each
        self._jobs: dict[str, _Job[Outcome]] = {}

    def ask(
        self, key: str, caller: str, do: Callable[[], Coroutine[Any, Any, Outcome]]
    ) -> Outcome | None:
        """Start a job, or return its result; `None` while it is running."""
        job = self._jobs.get(key)
        if job is None:
            self._make_room(caller)
            self._jobs[key] = _Job(caller, asyncio.create_task(do()))
            return None
        if not job.task.done():
            return None
        del self._jobs[key]
        return job.task.result()

    def _make_room(self, caller: str) -> None:
        for key in [key for key, job in self._jobs.items() if job.task.done()]:
            if self._is_full(caller):
                del self._jobs[key]
        if self._is_full(caller):
            raise BusyError(
                f"{self._count(caller)} {self._what} of {caller} wait on this node,"
                f" {len(self._jobs)} in all: the limit is reached"
            )

    def _is_full(self, caller: str) -> bool:
        return len(self._jobs) >= self._most or self._count(caller) >= self._each

    def _count(self, caller: str) -> int:
        return sum(job.caller == caller for job in self._jobs.values())


WORKING: Mapping[str, Json] = {"state": "working"}


class CompilationJobs:
    """Accepts and queues requests for compilations."""

    def __init__(self, runner: WorkRunner[messages.Compile], *, log: Log) -> None:
        self._runner = runner
        self._log = log
        self._one = asyncio.Lock()
        self._jobs: Jobs[Mapping[str, Json] | str] = Jobs("compilations", most=8, each=2)

    def ask(self, caller: str, args: messages.Compile) -> Mapping[str, Json] | str:
        """Start a compilation, or return its state: `WORKING`, the changes, or the error.

        Raises:
            BusyError: Too many compilations wait.
        """
        job_result = self._jobs.ask(f"{caller} {args.release}", caller, lambda: self._do(args))
        return WORKING if job_result is None else job_result

    async def _do(self, args: messages.Compile) -> Mapping[str, Json] | str:
        async with self._one:
            end = await self._runner.run(args)
        if end.result is not RequestedRunResult.OVER:
            self._log.warning(f"not compiled: {args.release}", kind=LineKind.REQUEST)
            return end.reason or "the catalog was not compiled"
        return {"state": "done", **end.details}


# Limits of deployments that wait, are running, or have an unread result: in total, and per caller.
MOST, EACH = 16, 4
BUSY_AGAIN = 2.0
BUSY_TRIES = 30

DONE: Mapping[str, Json] = {"state": "done"}
# Seconds after a noop run in which the node starts the run whose changes were approved.
FRESH = 120


class Deployment(Value):
    """The deployment that a child process executes."""

    caller: str
    args: messages.Deploy

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
    """Accepts and queues requests for deployments; a locked store delays them by `busy_again`."""

    runner: WorkRunner[Deployment]
    _: KW_ONLY
    agent: Agent
    inbox: Inbox
    holds: Callable[[], Holds]
    log: Log
    busy_again: float = BUSY_AGAIN
    _one: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _jobs: Jobs[str] = field(
        default_factory=lambda: Jobs("deployments", most=MOST, each=EACH),
        init=False,
    )

    def ask(self, caller: str, args: messages.Deploy) -> Mapping[str, Json] | str:
        """Start a deployment, or return its state: `WORKING`, `DONE`, or why it failed.

        Raises:
            OnHoldError: Another rollout holds the node.
            BusyError: A newer epoch of the rollout is known, or too many deployments wait.
        """
        wanted = Deployment(caller=caller, args=args)
        if args.rollout is not None:
            self.inbox.receive_rollout(_voice(caller, args.rollout))
        self._check_holds(wanted)
        job_result = self._jobs.ask(wanted.key, caller, lambda: self._do(wanted))
        return WORKING if job_result is None else job_result or DONE

    def _check_holds(self, wanted: Deployment) -> None:
        """Reject a change of the release if another rollout holds the node."""
        if wanted.args.action is messages.DeployAction.STAGE:
            return
        holds, owner = self.holds().active(), wanted.owner
        if problem := _hold_problem(holds, owner):
            raise problem

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
                if args.action is not messages.DeployAction.STAGE and args.rollout is None:
                    self.agent.request_run(CauseKind.REQUEST, sender=wanted.caller)
            else:
                self.log.warning(f"refused to {what}: {end.reason}", kind=LineKind.REQUEST)
        self.agent.recheck()
        over = end.result is RequestedRunResult.OVER
        return "" if over else end.reason or "the deployment was refused"

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
    """Decides on the requests of rollouts; `entry` refers to this node's newest entry."""

    agent: Agent
    _: KW_ONLY
    inbox: Inbox
    holds: Callable[[], Holds]
    clock: Clock
    entry: Callable[[], AwaitedEntry | None]
    awaits_entries: Callable[[], bool]

    def hear(self, caller: str, rollout: messages.RolloutReference) -> None:
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

    def run(self, caller: str, args: RunOnce, rollout: messages.RolloutStep) -> Mapping[str, Json]:
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
            uuid=messages.step_uuid(owner, rollout.step),
            timestamp=int(self.clock.now().timestamp()),
            expires=None,
            noop=args.noop,
            puppet_tags=args.tags,
            awaited_entries=args.awaited_entries,
        )
        stale = _StaleLookError("its noop run is too old") if self._stale(owner, args) else None
        try:
            step, is_new = self.inbox.step(
                cause,
                rollout.step,
                voice=_voice(caller, rollout),
                problem=lambda: _hold_problem(self.holds().active(), owner) or stale,
            )
        except _StaleLookError:
            return {"accepted": False, "repeat_noop": True}
        if is_new:
            self.agent.take_step(cause)
        return {"accepted": True, "step": step.to_dict(), **self._left(step, args)}

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


def _hold_problem(holds: Sequence[Hold], owner: str | None) -> LocalpuppetError | None:
    """Return why a rollout may not act on this node; for `None`, why a single request may not."""
    if owner is not None and all(hold.owner != owner for hold in holds):
        return BusyError("the rollout does not hold this node: its hold is over")
    others = [hold for hold in holds if hold.owner != owner and (owner or hold.of_rollout)]
    return OnHoldError(f"on hold: {others[0]}") if others else None


def _voice(caller: str, rollout: messages.RolloutReference) -> RolloutCaller:
    return RolloutCaller(
        owner=rollout.owner(caller), epoch=rollout.epoch, speaker=rollout.taken_over_by(caller)
    )


class AwaitedEntries:
    """Compares the entries that steps wait for with this node's view."""

    def __init__(self, view: View, exports: HeldExports, *, is_current: Callable[[], bool]) -> None:
        self._view = view
        self._exports = exports
        self._is_current = is_current
        self._known: dict[NodeName, ViewedNode] = {}  # an older entry is unpacked once

    def come(self) -> bool:
        """Return whether this node receives entries; the bus may deny it read access.

        A node without read access compiles its catalog without entries, so it must not wait for
        them.
        """
        try:
            return self._is_current()
        except StateError:
            return False  # the node's own queries report this error

    def lacking(self, cause: RunCause) -> str:
        """Return the missing entries as one line, empty if none is missing."""
        try:
            return self._lacking(cause)
        except StateError as error:
            return f"any node: {error}"  # the agent rebuilds the view from the bus

    def _lacking(self, cause: RunCause) -> str:
        standing = self._view.standing([entry.node for entry in cause.awaited_entries])
        exports = {
            node: entry.exports for node, entry in standing.items() if entry.exports is not None
        }
        coming = self._exports.missing(exports)
        seen = {
            entry.node: self._seen(entry, at)
            for entry in cause.awaited_entries
            if (at := standing[entry.node].at) is not None and entry.node not in coming
        }
        refused = {node: entry.refused for node, entry in standing.items() if entry.refused}
        return lacking(cause.awaited_entries, seen, refused)

    def _seen(self, awaited: AwaitedEntry, at: float) -> ViewedNode:
        if at >= awaited.at:
            return ViewedNode(digest="", at=at)
        before = self._known.get(awaited.node)
        if before is None or before.at != at:
            entry = self._view.entry(awaited.node)
            before = ViewedNode(digest="" if entry is None else entry.digest, at=at)
            self._known[awaited.node] = before
        return before
