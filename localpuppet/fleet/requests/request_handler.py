"""The requests of a node: accept or reject them, and execute them.

- The order of checks: size, signature, form, caller, audience, lifetime, policy, and last the
  repetition check, which writes to disk.
- `receive` returns a request at most once, across restarts and processes.
- Each request with a valid signature of its caller gets one signed reply.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Protocol

from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.formats.names import NodeName, RunId, SignerName
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.times import show_duration, show_time
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.ports import Clock, LineKind, Log
from localpuppet.base.value import Value
from localpuppet.fleet.history.node_history import Auditor
from localpuppet.fleet.requests import arguments
from localpuppet.fleet.requests import request as requests
from localpuppet.fleet.requests.request import (
    Arguments,
    Disable,
    Enable,
    Request,
    RunArguments,
    RunOnce,
    answer,
    requesting_rollout,
)
from localpuppet.fleet.trust import policy as policy_file
from localpuppet.fleet.trust.policy import read_policy
from localpuppet.fleet.trust.seen import SeenIds
from localpuppet.fleet.trust.signing import MessageKind, MessageSigner, Verifier
from localpuppet.node.runs.holds import Hold, Holds

# Seconds for which ids are kept, longer than the lifetime of messages: a clock that is set back by
# less does not revive one.
KEEP = 3600


class RequestRefusal(Value):
    """A rejected request.

    Attributes:
        request: The request if its caller gets a reply: the caller signed it for this node, and it
            was not accepted before. A repeated message has its reply already, and a second one
            could overtake it.
        is_repeated: Whether the node accepted it before: the bus delivers what it still has when an
            agent starts, so this is no sign of an attack.
    """

    reason: str
    request: Request | None
    is_repeated: bool = False


class RequestAdmission(Value):
    """Checks the requests to this node; the policy file is read for each, and may be missing."""

    me: NodeName
    verifier: Verifier
    policy: Path
    seen: SeenIds
    clock: Clock

    def refusal(self, caller: SignerName, action: str) -> str:
        """Return why the policy denies a caller an action; empty if it allows it.

        Raises:
            InvalidInputError: The policy is invalid.
        """
        return policy_file.refusal(self.policy, caller, action)

    def receive(self, token: bytes) -> Request | RequestRefusal:
        """Return an accepted request, or why it is rejected. Blocks for a disk write."""
        try:
            signed = self.verifier.verify(token, MessageKind.REQUEST)
            request = Request.parse(signed.payload)
            reason = requests.misdirection(request, signer=signed.signer, me=self.me)
            if reason:
                return RequestRefusal(reason=reason, request=None)
        except LocalpuppetError as error:
            return RequestRefusal(reason=one_line(str(error)), request=None)
        try:
            now = int(self.clock.now().timestamp())
            reason = requests.refusal(request, now=now, policy=read_policy(self.policy))
            if reason:
                return RequestRefusal(reason=reason, request=request)
            if self.seen.add(request.caller, request.jti, request.exp + KEEP):
                return request
        except LocalpuppetError as error:
            return RequestRefusal(reason=one_line(str(error)), request=request)
        reason = f"replay: {request.jti} was admitted already"
        return RequestRefusal(reason=reason, request=None, is_repeated=True)


# Accepted requests that are no audit records: rollouts send them all the time, and they change
# and reveal nothing that the node does not publish.
_UNRECORDED = ("status", "last_run_summary")


class Actions(Value):
    """The actions of a node, besides its holds.

    Attributes:
        durations: Returns the seconds of the last successful runs, newest first.
        last_run: Returns the record of the last finished run, empty before the first.
        report: Returns the report of a run, or of the newest for `None`; blocks, and may raise.
        log: Returns Puppet's log of a run; as `report`.
        capture: Returns a part of the capture of the last good run; as `report`.
        catalog: Returns a part of the catalog of that run; as `report`.
        changes: Returns what a noop run would have changed, marked with a salt; as `report`. `None`
            if the site uses its own command, whose changes are unknown.
        deploy: Stages, applies or leaves a release for a caller; returns the progress, or the
            error; may raise.
        confirm: Accepts a rollout's confirmation of its deployment; as `deploy`.
        compile: Compiles the catalog with another release for a caller; returns the progress, the
            changes, or the error; may raise.
    """

    status: Callable[[], Mapping[str, Json]]
    durations: Callable[[], list[Json]]
    last_run: Callable[[], Mapping[str, Json]]
    report: Callable[[RunId | None], Mapping[str, Json]]
    log: Callable[[RunId | None], Mapping[str, Json]]
    capture: Callable[[arguments.ChunkArguments], Mapping[str, Json]]
    catalog: Callable[[arguments.ChunkArguments], Mapping[str, Json]]
    changes: Callable[[str, str], Mapping[str, Json]] | None
    run: Callable[[str, bool, Sequence[str], str], str | None]
    changed: Callable[[], None]
    deploy: Callable[[str, arguments.Deploy], Mapping[str, Json] | str]
    confirm: Callable[[str, arguments.Deploy], Mapping[str, Json] | str]
    compile: Callable[[str, arguments.Compile], Mapping[str, Json] | str]
    rollout: "RolloutActions"


class RolloutActions(Protocol):
    """The actions of rollouts; callers are those of requests, owners those of holds."""

    def awaits_entries(self) -> bool:
        """Return whether the node can wait for entries of other nodes."""

    def hear(self, caller: str, rollout: arguments.RolloutReference) -> None:
        """Record the controller of a rollout; raises if a newer epoch or another one is known."""

    def speaks(self, owner: str) -> dict[str, Json]:
        """Return the controller of a rollout: epoch, who took it over, since when; or nothing."""

    def check_hold(self, owner: str) -> None:
        """Raise `OnHoldError` if another owner holds the node."""

    def run(self, caller: str, args: RunOnce, rollout: arguments.RolloutStep) -> Mapping[str, Json]:
        """Take a step, or return its result; raises if the step is rejected."""


class RequestHandler(Value):
    """Executes requests."""

    reception: RequestAdmission
    signer: MessageSigner
    holds: Callable[[], Holds]
    actions: Actions
    audit: Auditor
    clock: Clock
    log: Log

    async def serve(self, token: bytes) -> tuple[str, str, bytes] | None:
        """Execute a request.

        Returns:
            The caller's name, the request's id and the signed reply; `None` if no trusted caller
            waits for a reply.
        """
        received = await asyncio.to_thread(self.reception.receive, token)
        if isinstance(received, RequestRefusal):
            say = self.log.info if received.is_repeated else self.log.warning
            say(f"refused a request: {received.reason}", kind=LineKind.STRANGER)
            if received.request is None:
                self.audit.record("", "", "", reason=received.reason, request="", repeats=True)
                return None
            return self._reply(received.request, received.reason)
        self.log.info(
            f"asked for {received.action} by {received.caller.caller}", kind=LineKind.REQUEST
        )
        try:
            run_reply = self._of_run(received)
            if run_reply is not None:
                return self._reply(received, await asyncio.to_thread(run_reply))
            done = self._do(received)
            return self._reply(
                received, done if isinstance(done, str) else await self._more(received, done)
            )
        except LocalpuppetError as error:
            return self._reply(received, str(error))

    def _reply(self, request: Request, outcome: Mapping[str, Json] | str) -> tuple[str, str, bytes]:
        args, reason = request.args, outcome if isinstance(outcome, str) else ""
        if reason or request.action not in _UNRECORDED:
            self.audit.record(
                request.caller.caller,
                request.action,
                _subject(args),
                reason=reason,
                request=request.jti,
                repeats=requesting_rollout(args) is not None,
            )
        token = answer(self.signer, request, outcome, clock=self.clock)
        return request.caller, request.jti, token

    def _of_run(self, request: Request) -> Callable[[], Mapping[str, Json]] | None:
        """Return a function that reads a large record, which must not block the agent's thread."""
        args = request.args
        if isinstance(args, arguments.ChunkArguments):
            actions = self.actions
            return partial(
                actions.capture if request.action == "capture" else actions.catalog, args
            )
        tells = {"report": self.actions.report, "log": self.actions.log}.get(request.action)
        if tells is None or not isinstance(args, RunArguments):
            return None
        return partial(tells, args.run)

    async def _more(
        self, request: Request, done: Mapping[str, Json] | str
    ) -> Mapping[str, Json] | str:
        """Return a result with the changes of its step, if the request asks for them.

        If the changes are unknown, the reply has the step's result and the reason.
        """
        args, tell = request.args, self.actions.changes
        if isinstance(done, str) or not isinstance(args, RunOnce) or not args.changes_salt:
            return done
        if tell is None:
            return {**done, "changes": {"problem": "a command of the site's own runs here"}}
        step = done.get("step")
        run = step.get("run") if isinstance(step, dict) else None
        if not isinstance(run, str):
            return done
        try:
            changes = await asyncio.to_thread(tell, run, args.changes_salt)
        except LocalpuppetError as error:
            changes = {"problem": str(error)}
        return {**done, "changes": dict(changes)}

    def _do(self, request: Request) -> Mapping[str, Json] | str:
        if request.action == "status":
            return {**self.actions.status(), **self._denied(request), **self._speaks(request)}
        if request.action == "last_run_summary":
            return self.actions.last_run()
        if request.action == "runonce":
            return self._run(request)
        args = request.args
        if isinstance(args, arguments.Deploy):
            return self._deploy(request.caller.caller, args)
        if isinstance(args, arguments.Compile):
            return self.actions.compile(request.caller.caller, args)
        owner = request.caller.caller
        if isinstance(args, Disable | Enable) and args.rollout is not None:
            self.actions.rollout.hear(owner, args.rollout)
            owner = args.rollout.owner(owner)
        if isinstance(args, Disable):
            if args.rollout is not None:
                self.actions.rollout.check_hold(owner)
            hold = self._renewed(self._hold(owner, args), args)
            self.holds().add(hold)
            self.actions.changed()
            return {"hold": hold.to_dict()}
        ended = self.holds().remove(owner)
        self.actions.changed()
        ended_now: list[Json] = [hold.to_dict() for hold in ended]
        others: list[Json] = [hold.to_dict() for hold in self.holds().active()]
        return {"ended": ended_now, "holds": others}

    def _deploy(self, caller: str, args: arguments.Deploy) -> Mapping[str, Json] | str:
        if args.action is not arguments.DeployAction.CONFIRM or args.rollout is None:
            return self.actions.deploy(caller, args)
        self.actions.rollout.hear(caller, args.rollout)
        return self.actions.confirm(caller, args)

    def _denied(self, request: Request) -> Mapping[str, Json]:
        """Return the actions in a status request that the policy denies, with the reasons.

        Callers ask this before a run, so the reply has the durations of runs too.
        """
        if not isinstance(request.args, arguments.StatusRequest) or not request.args.may:
            return {}
        denied: dict[str, Json] = {}
        for action in request.args.may:
            if reason := self.reception.refusal(request.caller, action):
                denied[action] = reason
        return {
            "denied": denied,
            "durations": self.actions.durations(),
            # Whether `RunOnce.awaited_entries` and `changes_salt` may be given.
            "awaits_entries": self.actions.rollout.awaits_entries(),
            "reports_changes": self.actions.changes is not None,
        }

    def _speaks(self, request: Request) -> Mapping[str, Json]:
        """Return the controller of the rollout that the caller asks about."""
        if not isinstance(request.args, arguments.StatusRequest) or request.args.rollout is None:
            return {}
        owner = request.args.rollout.owner(request.caller.caller)
        return {"rollout_controller": self.actions.rollout.speaks(owner)}

    def _hold(self, owner: str, args: Disable) -> Hold:
        now = self.clock.now()
        until = None if args.seconds is None else now + timedelta(seconds=args.seconds)
        return Hold(
            owner=owner,
            reason=args.message,
            since=show_time(now),
            until=None if until is None else show_time(until),
        )

    def _renewed(self, hold: Hold, args: Disable) -> Hold:
        """Return the hold; a renewed hold of a rollout keeps its start time."""
        if args.rollout is None:
            return hold
        before = (item.since for item in self.holds().active() if item.owner == hold.owner)
        return replace(hold, since=next(before, hold.since))

    def _run(self, request: Request) -> Mapping[str, Json] | str:
        args = request.args if isinstance(request.args, RunOnce) else RunOnce()
        caller = request.caller.caller
        if args.rollout is not None:
            return self.actions.rollout.run(caller, args, args.rollout)
        problem = self.actions.run(caller, args.noop, args.tags, request.jti)
        if problem:
            return problem
        holds: list[Json] = [hold.to_dict() for hold in self.holds().active()]
        return {"accepted": True, "holds": holds}


def _subject(args: Arguments) -> str:
    """Return what a request is about, for its audit record: no values of a deployment."""
    parts: list[str] = []
    if isinstance(args, Disable):
        seconds = args.seconds
        # A rollout's message repeats its id.
        parts = [] if args.rollout is not None else [args.message]
        parts += [f"for {show_duration(seconds)}"] if seconds else []
    elif isinstance(args, arguments.Deploy):
        stage = "" if args.action is arguments.DeployAction.APPLY else f"{args.action} "
        parts = [f"{stage}{args.release}"]
    elif isinstance(args, arguments.Compile):
        parts = [str(args.release)]
    elif isinstance(args, RunArguments):
        parts = [f"run {args.run or 'newest'}"]
    elif isinstance(args, RunOnce):
        parts = [*(["noop"] if args.noop else []), *map("tag {}".format, args.tags)]
    if (rollout := requesting_rollout(args)) is not None:
        step = f" step {rollout.step}" if isinstance(rollout, arguments.RolloutStep) else ""
        parts.insert(0, f"rollout {rollout.id}{step}")
    return ", ".join(parts)
