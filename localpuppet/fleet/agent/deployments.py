"""Deployments that this node is asked for: one at a time, in children, told when asked again.

    ask -> "working" … ask -> "working" … ask -> "done", or why not

Owns: that nobody waits for git in a reply, who may change the release while a rollout holds the
node, and how many deployments may wait. Refuses to know: signatures and rights
(`requests.admission`), what a deployment does (`runs.assigning`).

Invariants: what is asked again after an agent was killed is done again, and comes to the same; a
release that is taken by hand is followed by a run.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from localpuppet.base.errors import BusyError, LocalpuppetError, OnHoldError
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.ports import LineKind, Log
from localpuppet.fleet.agent.agent import Agent
from localpuppet.fleet.agent.jobs import Jobs
from localpuppet.fleet.agent.runner import Fate, RunEnd
from localpuppet.fleet.requests.deploy import Deed, Deploy
from localpuppet.fleet.triggers.cause import CauseKind
from localpuppet.fleet.triggers.inbox import Inbox
from localpuppet.fleet.triggers.step_table import Voice
from localpuppet.node.enc.assignment import Assignment
from localpuppet.node.runs.holds import Holds

# Deployments that wait, go on, or were done and not asked about yet: in all, and of one caller.
MOST, EACH = 16, 4
BUSY_AGAIN = 2.0
BUSY_TRIES = 30

WORKING: Mapping[str, Json] = {"state": "working"}
DONE: Mapping[str, Json] = {"state": "done"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """What a child is to do.

    Attributes:
        caller: Who asks, a caller id.
        args: For what.
    """

    caller: str
    args: Deploy

    @property
    def owner(self) -> str | None:
        """The owner of the hold of the rollout that asks; `None` where somebody does by hand."""
        rollout = self.args.rollout
        return None if rollout is None else rollout.owner(self.caller)

    @property
    def assignment(self) -> Assignment:
        """What the node is to take: of a rollout, by its caller, also where another goes on."""
        args = self.args
        whose = args.rollout.caller if args.rollout is not None else ""
        return Assignment(
            release=args.release,
            serial=args.serial,
            by=whose or self.caller,
            layers=args.layers,
            classes=args.classes,
            rollout="" if args.rollout is None else str(args.rollout.id),
            older=args.older,
        )

    @property
    def key(self) -> str:
        """What is the same for the same deployment asked again, in a later epoch, too."""
        asked = {**self.args.to_dict(), "rollout": self.assignment.rollout}
        return json.dumps([self.caller, asked], sort_keys=True)


class DeploymentRunner(Protocol):
    """Does deployments; see `agent.fork_runner`."""

    async def run(self, order: Deployment) -> RunEnd:
        """Do a deployment and return how it went; its fate is `OVER` where it is done."""
        ...


class Deployments:
    """Where deployments are asked for.

    Args:
        runner: Does them.
        agent: Runs what was taken.
        inbox: Remembers the epochs of rollouts.
        holds: Returns the holds on this node.
        log: What is said of them.
        busy_again: Seconds until what found the store locked is tried again.
    """

    def __init__(
        self,
        runner: DeploymentRunner,
        *,
        agent: Agent,
        inbox: Inbox,
        holds: Callable[[], Holds],
        log: Log,
        busy_again: float = BUSY_AGAIN,
    ) -> None:
        self._runner = runner
        self._agent = agent
        self._inbox = inbox
        self._holds = holds
        self._log = log
        self._busy_again = busy_again
        self._one = asyncio.Lock()
        self._jobs: Jobs[str] = Jobs("deployments", most=MOST, each=EACH)

    def ask(self, caller: str, args: Deploy) -> Mapping[str, Json] | str:
        """Begin a deployment, or return where it is: `WORKING`, `DONE`, or why it is refused.

        Raises:
            OnHoldError: A rollout holds the node, and it is not the one that asks.
            BusyError: A newer epoch of the rollout is known, or too many deployments wait.
            StateError: The epoch is not on the disk.
        """
        wanted = Deployment(caller=caller, args=args)
        if args.rollout is not None and wanted.owner is not None:
            rollout = args.rollout
            speaker = rollout.taken_over_by(caller)
            voice = Voice(owner=wanted.owner, epoch=rollout.epoch, speaker=speaker)
            self._inbox.hear_rollout(voice)
        self._check_holds(wanted)
        found = self._jobs.ask(wanted.key, caller, lambda: self._do(wanted))
        return WORKING if found is None else found or DONE

    def _check_holds(self, wanted: Deployment) -> None:
        """Refuse to change the release of a node that a rollout holds, but for that rollout."""
        if wanted.args.deed is Deed.STAGE:
            return
        holds = self._holds().active()
        owner = wanted.owner
        if owner is not None and all(hold.owner != owner for hold in holds):
            raise BusyError("the rollout does not hold this node: its hold is over")
        others = [hold for hold in holds if hold.owner != owner and (owner or hold.of_rollout)]
        if others:
            raise OnHoldError(f"on hold: {others[0]}")

    async def _do(self, wanted: Deployment) -> str:
        """Do a deployment; return why that cannot be, if so."""
        args = wanted.args
        what = f"{args.deed} {args.release} for {wanted.owner or wanted.caller}"
        async with self._one:
            try:
                self._check_holds(wanted)  # it may have waited for long
                end = await self._run(wanted)
            except LocalpuppetError as error:
                end = RunEnd(fate=Fate.IMPOSSIBLE, reason=str(error))
            if end.fate is Fate.OVER:
                self._log.info(f"done: {what}", kind=LineKind.REQUEST)
                if args.deed is not Deed.STAGE and args.rollout is None:
                    self._agent.request_run(CauseKind.REQUEST, sender=wanted.caller)
            else:
                self._log.warning(f"refused to {what}: {end.reason}", kind=LineKind.REQUEST)
        self._agent.recheck()
        return "" if end.fate is Fate.OVER else end.reason or "the deployment was refused"

    async def _run(self, wanted: Deployment) -> RunEnd:
        end = await self._runner.run(wanted)
        for _ in range(BUSY_TRIES):
            if end.fate is not Fate.BUSY:
                break
            await asyncio.sleep(self._busy_again)
            end = await self._runner.run(wanted)
        return end
