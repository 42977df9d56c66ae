"""The requests of a node: accept or reject them, and execute them.

- The order of checks: size, signature, form, caller, audience, lifetime, policy, and last the
  repetition check, which writes to disk.
- `receive` returns a request at most once, across restarts and processes.
- Each request with a valid signature of its caller gets one signed reply.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
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
from localpuppet.fleet.requests import request as messages
from localpuppet.fleet.requests.request import Arguments, Request, answer, requesting_rollout
from localpuppet.fleet.trust.policy import read_policy, refusal
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

    def receive(self, token: bytes) -> Request | RequestRefusal:
        """Return an accepted request, or why it is rejected. Blocks for a disk write."""
        try:
            signed = self.verifier.verify(token, MessageKind.REQUEST)
            request = Request.parse(signed.payload)
            reason = messages.misdirection(request, signer=signed.signer, me=self.me)
            if reason:
                return RequestRefusal(reason=reason, request=None)
        except LocalpuppetError as error:
            return RequestRefusal(reason=one_line(str(error)), request=None)
        try:
            now = int(self.clock.now().timestamp())
            reason = messages.refusal(request, now=now, policy=read_policy(self.policy))
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
    capture: Callable[[messages.ChunkArguments], Mapping[str, Json]]
    catalog: Callable[[messages.ChunkArguments], Mapping[str, Json]]
    changes: Callable[[str, str], Mapping[str, Json]] | None
    run: Callable[[str, bool, Sequence[str], str], str | None]
    changed: Callable[[], None]
    deploy: Callable[[str, messages.Deploy], Mapping[str, Json] | str]
    confirm: Callable[[str, messages.Deploy], Mapping[str, Json] | str]
    compile: Callable[[str, messages.Compile], Mapping[str, Json] | str]
    rollout: "RolloutActions"


class RolloutActions(Protocol):
    """The actions of rollouts; callers are those of requests, owners those of holds."""

    def awaits_entries(self) -> bool:
        """Return whether the node can wait for entries of other nodes."""

    def hear(self, caller: str, rollout: messages.RolloutReference) -> None:
        """Record the controller of a rollout; raises if a newer epoch or another one is known."""

    def speaks(self, owner: str) -> dict[str, Json]:
        """Return the controller of a rollout: epoch, who took it over, since when; or nothing."""

    def check_hold(self, owner: str) -> None:
        """Raise `OnHoldError` if another owner holds the node."""

    def run(
        self, caller: str, args: messages.RunOnce, rollout: messages.RolloutStep
    ) -> Mapping[str, Json]:
        """Take a step, or return its result; raises if the step is rejected."""


class RequestHandler(Value):
    reception: RequestAdmission
    signer: MessageSigner
    holds: Callable[[], Holds]
    actions: Actions
    audit: Auditor
    clock: Clock
    log: Log

    async def serve(self, token: bytes) -> tuple[str, str, bytes] | None:
        """Execute a request; return the caller, the request's id and the signed reply.

        It returns `None` if no trusted caller waits for a reply.
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
            if read := self._reader(received):
                return self._reply(received, await asyncio.to_thread(read))
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

    def _reader(self, request: Request) -> Callable[[], Mapping[str, Json]] | None:
        """Return a function that reads a large record, which must not block the agent's thread."""
        actions = self.actions
        match request.args:
            case messages.ChunkArguments() as part:
                read = actions.capture if request.action == "capture" else actions.catalog
                return partial(read, part)
            case messages.RunArguments(run=run):
                reads = {"report": actions.report, "log": actions.log}
                return partial(reads[request.action], run)
        return None

    async def _more(self, request: Request, done: Mapping[str, Json]) -> Mapping[str, Json]:
        """Return a result with the changes of its step, if the request asks for them.

        If the changes are unknown, the reply has the step's result and the reason.
        """
        args, tell = request.args, self.actions.changes
        if not isinstance(args, messages.RunOnce) or not args.changes_salt:
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
        caller = request.caller.caller
        match request.args:
            case messages.StatusRequest() as args:
                return self._status(request.caller, args)
            case messages.RunOnce() as args:
                return self._run(caller, args, request.jti)
            case messages.Deploy(action=messages.DeployAction.CONFIRM, rollout=rollout) as args:
                if rollout is not None:
                    self.actions.rollout.hear(caller, rollout)
                return self.actions.confirm(caller, args)
            case messages.Deploy() as args:
                return self.actions.deploy(caller, args)
            case messages.Compile() as args:
                return self.actions.compile(caller, args)
            case messages.Disable() | messages.Enable() as args:
                owner = caller
                if args.rollout is not None:
                    self.actions.rollout.hear(caller, args.rollout)
                    owner = args.rollout.owner(caller)
                if isinstance(args, messages.Disable):
                    return self._begin_hold(owner, args)
                return self._end_hold(owner)
        return self.actions.last_run()

    def _status(self, caller: SignerName, args: messages.StatusRequest) -> Mapping[str, Json]:
        """Return the status, the denied actions with the reasons, and a rollout's controller.

        Callers ask for denied actions before a run, so the reply has the durations of runs too.
        """
        status = {**self.actions.status()}
        if args.may:
            policy = self.reception.policy
            reasons = {action: refusal(policy, caller, action) for action in args.may}
            status |= {
                "denied": {action: reason for action, reason in reasons.items() if reason},
                "durations": self.actions.durations(),
                # Whether `RunOnce.awaited_entries` and `changes_salt` may be given.
                "awaits_entries": self.actions.rollout.awaits_entries(),
                "reports_changes": self.actions.changes is not None,
            }
        if args.rollout is not None:
            owner = args.rollout.owner(caller.caller)
            status["rollout_controller"] = self.actions.rollout.speaks(owner)
        return status

    def _begin_hold(self, owner: str, args: messages.Disable) -> Mapping[str, Json]:
        now, since = self.clock.now(), None
        if args.rollout is not None:
            self.actions.rollout.check_hold(owner)
            # A renewed hold keeps its start.
            active = self.holds().active()
            since = next((hold.since for hold in active if hold.owner == owner), None)
        until = None if args.seconds is None else show_time(now + timedelta(seconds=args.seconds))
        hold = Hold(owner=owner, reason=args.message, since=since or show_time(now), until=until)
        self.holds().add(hold)
        self.actions.changed()
        return {"hold": hold.to_dict()}

    def _end_hold(self, owner: str) -> Mapping[str, Json]:
        ended = self.holds().remove(owner)
        self.actions.changed()
        return {"ended": [hold.to_dict() for hold in ended], "holds": self._held()}

    def _run(self, caller: str, args: messages.RunOnce, request: str) -> Mapping[str, Json] | str:
        if args.rollout is not None:
            return self.actions.rollout.run(caller, args, args.rollout)
        problem = self.actions.run(caller, args.noop, args.tags, request)
        return problem or {"accepted": True, "holds": self._held()}

    def _held(self) -> list[Json]:
        return [hold.to_dict() for hold in self.holds().active()]


def _subject(args: Arguments) -> str:
    """Return what a request is about, for its audit record: no values of a deployment."""
    parts: list[str] = []
    match args:
        case messages.Disable():
            # A rollout's message repeats its id.
            parts = [] if args.rollout is not None else [args.message]
            parts += [f"for {show_duration(args.seconds)}"] if args.seconds else []
        case messages.Deploy():
            stage = "" if args.action is messages.DeployAction.APPLY else f"{args.action} "
            parts = [f"{stage}{args.release}"]
        case messages.Compile():
            parts = [str(args.release)]
        case messages.RunArguments():
            parts = [f"run {args.run or 'newest'}"]
        case messages.RunOnce():
            parts = [*(["noop"] if args.noop else []), *map("tag {}".format, args.tags)]
    if (rollout := requesting_rollout(args)) is not None:
        step = f" step {rollout.step}" if isinstance(rollout, messages.RolloutStep) else ""
        parts.insert(0, f"rollout {rollout.id}{step}")
    return ", ".join(parts)
