"""Deploy releases on request, one at a time, in child processes.

    request -> "working" … request -> "working" … request -> "done", or the error

- A reply never waits for git.
- While a rollout holds the node, only this rollout changes the release.
- A deployment that is requested again after the agent was killed is repeated, with the same result.
- A run follows a release that a person assigned outside of a rollout.
- `requests.admission` checks signature and rights; `runs.assigning` deploys.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field

from localpuppet.base.errors import BusyError, LocalpuppetError, OnHoldError
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.ports import LineKind, Log
from localpuppet.fleet.agent.agent import Agent
from localpuppet.fleet.agent.jobs import Jobs
from localpuppet.fleet.agent.runner import RequestedRunResult, RunCompletion, WorkRunner
from localpuppet.fleet.requests.deploy import Deploy, DeployAction
from localpuppet.fleet.triggers.cause import CauseKind
from localpuppet.fleet.triggers.inbox import Inbox
from localpuppet.fleet.triggers.step_table import RolloutCaller
from localpuppet.node.enc.assignment import Assignment
from localpuppet.node.runs.holds import Holds

# Limits of deployments that wait, are running, or have an unread result: in total, and per caller.
MOST, EACH = 16, 4
BUSY_AGAIN = 2.0
BUSY_TRIES = 30

WORKING: Mapping[str, Json] = {"state": "working"}
DONE: Mapping[str, Json] = {"state": "done"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
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
