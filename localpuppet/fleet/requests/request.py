"""Requests from one signer to one node, and replies: arguments, lifetime, claims, who accepts.

- The caller of these functions verifies the bytes first, and records the id of an accepted request
  before it acts.
- A request for another caller's rollout acts for that caller, and needs the right `takeover`.
- The caller and the node check the arguments with the same rules.
- Values that look like a secret, or that would interpolate data of the node, do not cross the bus.
"""

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import field
from enum import StrEnum
from functools import partial
from operator import attrgetter
from typing import Annotated, ClassVar, Protocol

from localpuppet.base.errors import IntegrityError, InvalidInputError
from localpuppet.base.formats import converter, names
from localpuppet.base.formats.text import (
    breadcrumb_key,
    cut_to_bytes,
    one_line,
    parse_choice,
    parse_line,
)
from localpuppet.base.formats.times import parse_duration
from localpuppet.base.formats.values import Json, at, wrong_type
from localpuppet.base.machine.ports import Clock
from localpuppet.fleet.bus import bus_limits as limits
from localpuppet.fleet.inventory.facts import is_secret
from localpuppet.fleet.inventory.outbox import MAX_AWAITED, AwaitedEntry
from localpuppet.fleet.trust.policy import DEPLOY, DEPLOYS, REQUESTS, TAKEOVER, Policy, decide
from localpuppet.fleet.trust.signing import MessageKind, MessageSigner, Verifier
from localpuppet.node.enc.document import Classes, EncData, references
from localpuppet.node.puppet.changes import parse_salt
from localpuppet.node.runs.holds import rollout_owner

# Seconds that a person waits for replies.
PATIENCE = 20.0
SCHEMA = 1
# A signer as a caller id.
Caller = Annotated[
    names.SignerName, converter.text_form(names.SignerName.parse_caller, write=attrgetter("caller"))
]


class ChunkArguments(converter.Message):
    """A chunk from 0, and the digest of the data that the caller began with, if it has begun."""

    chunk: Annotated[
        int, converter.AllowedRange(minimum=0, maximum=limits.MAX_CHUNKS - 1), converter.ALWAYS
    ] = 0
    digest: Annotated[str, names.parse_sha256] = ""


def _refuse_mutable(release: names.ReleasePath, verb: str) -> None:
    if not release.is_tag:
        problem = f"{release} is not a tag, and only tags are {verb}"
        raise InvalidInputError(problem, where="release", hint="name SOURCE/tags/TAG")


class Compile(converter.Message):
    """The arguments of `compile`."""

    release: names.ReleasePath

    def __post_init__(self) -> None:
        """Check the arguments before they are on the bus."""
        _refuse_mutable(self.release, "compared")


_NAMESPACE = uuid.UUID("5a7d1f1e-54c8-4f5e-8f0a-6a8a4a0b2a16")


def _caller(text: str) -> str:
    return names.SignerName.parse_caller(text).caller


class RolloutReference(converter.Message):
    """The rollout of a request that is not a run.

    Attributes:
        epoch: How often the rollout was begun or resumed, from 1: a node rejects requests of an
            epoch before the newest one that it knows.
        caller: The caller id of the rollout's owner, if the request comes from another caller that
            took the rollout over; otherwise empty.
    """

    id: names.RolloutId
    epoch: Annotated[int, converter.AllowedRange(minimum=1, maximum=limits.MAX_EPOCH)]
    caller: Annotated[str, _caller] = ""

    def owner(self, caller: str) -> str:
        """Return the owner of the rollout's holds."""
        return rollout_owner(self.caller or caller, self.id)

    def taken_over_by(self, caller: str) -> str:
        """Return the caller if it took over another caller's rollout, otherwise empty."""
        return "" if self.caller in ("", caller) else caller


class RolloutStep(RolloutReference):
    """The rollout of a request that is a run, and the number of its step, from 1."""

    step: Annotated[int, converter.AllowedRange(minimum=1, maximum=limits.MAX_STEP)]


def step_uuid(owner: str, step: int) -> str:
    """Return the id of a step's cause on a node, which both sides compute."""
    return str(uuid.uuid5(_NAMESPACE, f"{owner}/{step}"))


# The rights that a caller can ask about besides releases.
_RIGHTS = (*(action for action in REQUESTS if action != DEPLOY), "older", TAKEOVER, "values")


def _right(text: str) -> str:
    if text.startswith(DEPLOYS):
        release = names.ReleasePath.parse(text.removeprefix(DEPLOYS), where="")
        return f"{DEPLOYS}{release}"
    if text not in _RIGHTS:
        raise InvalidInputError(
            f"the action {text[:40]!r} is unknown", hint=f"one of {', '.join(_RIGHTS)}"
        )
    return text


class StatusRequest(converter.Message):
    """The arguments of `status`.

    Attributes:
        may: Actions and rights (`deploy:shop/tags/r7`, `values`); the node returns those that its
            policy denies the caller.
    """

    may: Annotated[
        tuple[Annotated[str, _right], ...], converter.AllowedRange(minimum=1, maximum=len(_RIGHTS))
    ] = ()
    rollout: RolloutReference | None = None


class DeployAction(StrEnum):
    STAGE = "stage"  # stage it, and report whether the node could apply it
    APPLY = "apply"  # apply it, and run
    ROLL_BACK = "roll_back"  # leave it, and return to what ran before
    CONFIRM = "confirm"  # the node's nonce came back: it need not roll itself back


def _classes(raw: dict[str, Json]) -> Classes:
    for name, body in raw.items():
        if not isinstance(body, dict):
            raise wrong_type(body, "a mapping", breadcrumb_key(name))
    return EncData.from_dict({"classes": raw}).classes


class Deploy(converter.Message):
    """The arguments of `deploy`.

    Attributes:
        serial: The serial of the assignment: one above that of the assignment in force on the node.
        nonce: For `CONFIRM`: the node's nonce; otherwise empty.
    """

    release: names.ReleasePath
    action: Annotated[
        DeployAction,
        partial(parse_choice, DeployAction, what="something that is done with a release"),
    ]
    serial: Annotated[int, converter.AllowedRange(minimum=1, maximum=limits.MAX_SERIAL)]
    layers: Annotated[
        tuple[Annotated[str, partial(parse_line, what="layer")], ...],
        converter.AllowedRange(minimum=1, maximum=limits.MAX_ASSIGNED_LAYERS),
    ] = ()
    classes: Annotated[Classes, converter.JsonForm(_classes)] = field(default_factory=dict)
    allow_older: bool = False
    rollout: RolloutReference | None = None
    nonce: Annotated[str, names.parse_uuid] = ""

    def __post_init__(self) -> None:
        """Check the arguments before they are on the bus."""
        _refuse_mutable(self.release, "deployed")
        if self.action is DeployAction.ROLL_BACK and self.rollout is None:
            raise InvalidInputError(
                "only a rollout can roll back a release",
                where="action",
                hint="run 'localpuppet rollback' on the node",
            )
        if (self.action is DeployAction.CONFIRM) != bool(self.nonce) or (
            self.nonce and not self.rollout
        ):
            raise InvalidInputError(
                "a rollout confirms with a nonce, and nothing else has one", where="nonce"
            )
        values = {"layers": list(self.layers), "classes": dict(self.classes)}
        if len(json.dumps(values).encode()) > limits.MAX_ASSIGNED_DATA:
            raise InvalidInputError(
                f"layers and classes are larger than {limits.MAX_ASSIGNED_DATA} bytes",
                where="values",
                hint="put shared values in the release's enc.yaml",
            )
        for name, body in self.classes.items():
            for place in references(body, where=at("classes", name)):
                raise InvalidInputError(
                    "refers to a node parameter with %{…}, which a request may not read",
                    where=place,
                    hint="write the value; a percent sign before a brace is %{literal('%')}",
                )
            for place in _secrets(body, at("classes", name)):
                raise InvalidInputError(
                    "has the name of a secret, and the bus would carry its value",
                    where=place,
                    hint="put secrets in Hiera (eyaml) or in the node's own input",
                )

    @property
    def rights(self) -> tuple[str, ...]:
        """Return the rights that the caller needs, all of them."""
        values = ("values",) if self.layers or self.classes else ()
        return (f"{DEPLOYS}{self.release}", *values, *(("older",) if self.allow_older else ()))


def _secrets(value: Json | Mapping[str, Json], place: str) -> Iterator[str]:
    """Yield the places of keys with the name of a secret."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _secrets(item, at(place, index))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if is_secret(key):
                yield at(place, key)
            yield from _secrets(item, at(place, key))


def _length(text: str) -> str:
    parse_duration(text)
    return text


class Disable(converter.Message):
    """The arguments of `disable`: put the node on hold.

    `length` is as people write it (`2h`). A rollout's hold has one of at most `MAX_HOLD` seconds.
    """

    message: Annotated[str, partial(parse_line, what="message")]
    length: Annotated[str | None, _length, converter.Key("for")] = None
    rollout: RolloutReference | None = None

    @property
    def seconds(self) -> float | None:
        """Return the length in seconds."""
        return None if self.length is None else parse_duration(self.length)

    def __post_init__(self) -> None:
        """Check that a rollout's hold has a length."""
        if self.rollout is not None and not 0 < (self.seconds or 0) <= limits.MAX_HOLD:
            raise InvalidInputError(
                f"a rollout's hold is not for up to {limits.MAX_HOLD:g} s", where="for"
            )


class Enable(converter.Message):
    """The arguments of `enable`: end the caller's own hold, or that of a rollout."""

    rollout: RolloutReference | None = None


class RunOnce(converter.Message):
    """The arguments of `runonce`: run Puppet now.

    Attributes:
        tags: Apply only resources with one of these Puppet tags; empty for all. In JSON an empty
            list is invalid: a complete run would surprise a caller whose filter removed all tags.
        rollout: The rollout step of the run: it passes this rollout's hold, runs alone, and once.
        awaited_entries: The entries that the node must have in its view before it takes the step.
        changes_salt: The salt with which the node reports the changes of the run; empty for no
            report. With noop in a rollout only.
        noop_step: The step of this rollout that was a noop run and whose changes were approved: the
            node starts only soon after it. 0 for none.
    """

    noop: Annotated[bool, converter.ALWAYS] = False
    tags: Annotated[
        tuple[Annotated[str, names.parse_tag], ...],
        converter.AllowedRange(minimum=1, maximum=limits.MAX_REQUEST_TAGS),
    ] = ()
    rollout: RolloutStep | None = None
    awaited_entries: Annotated[
        tuple[AwaitedEntry, ...], converter.AllowedRange(maximum=MAX_AWAITED)
    ] = ()
    changes_salt: Annotated[str, parse_salt] = ""
    noop_step: Annotated[int, converter.AllowedRange(minimum=1, maximum=limits.MAX_STEP)] = 0

    def __post_init__(self) -> None:
        """Check that only a rollout asks for a comparison of changes."""
        if self.noop_step and self.rollout is None:
            raise InvalidInputError("is allowed in a rollout only", where="noop_step")
        if self.awaited_entries and self.rollout is None:
            raise InvalidInputError("is allowed in a rollout only", where="awaited_entries")
        if self.changes_salt and (self.rollout is None or not self.noop):
            raise InvalidInputError("is allowed with noop in a rollout only", where="changes_salt")


class RunArguments(converter.Message):
    """The arguments of `report` and `log`; without a run, the newest."""

    run: names.RunId | None = None

    @classmethod
    def named(cls, run: str | None) -> "RunArguments":
        """Return the arguments for a complete run id from a person; `None` means the newest run."""
        return cls(run=None if run is None else names.RunId.parse(run))


class NoArguments(converter.Message):
    """The arguments of an action without arguments."""


Arguments = (
    ChunkArguments
    | Compile
    | Deploy
    | Disable
    | Enable
    | RunOnce
    | RunArguments
    | StatusRequest
    | NoArguments
)
_ARGUMENTS: Mapping[str, type[Arguments]] = {
    "capture": ChunkArguments,
    "catalog": ChunkArguments,
    "compile": Compile,
    "deploy": Deploy,
    "disable": Disable,
    "enable": Enable,
    "log": RunArguments,
    "report": RunArguments,
    "runonce": RunOnce,
    "status": StatusRequest,
}


def requesting_rollout(args: Arguments) -> RolloutReference | None:
    """Return the rollout for which a request asks; `None` for any other request."""
    return args.rollout if isinstance(args, Deploy | Disable | Enable | RunOnce) else None


def _action(text: str) -> str:
    if text not in REQUESTS:
        raise InvalidInputError(
            f"the action {text[:40]!r} is unknown", hint=f"one of {', '.join(REQUESTS)}"
        )
    return text


class Request(converter.Message):
    """A request to one node: `iss` is the sender's caller id, `aud` the receiver."""

    SCHEMA: ClassVar = SCHEMA
    WHERE: ClassVar = "request"
    LIMIT: ClassVar = limits.MAX_REQUEST
    caller: Annotated[Caller, converter.Key("iss")]
    node: Annotated[names.NodeName, converter.Key("aud")]
    iat: Annotated[int, converter.AllowedRange(minimum=0)]
    exp: Annotated[int, converter.AllowedRange(minimum=0)]
    jti: Annotated[str, names.parse_uuid]
    action: Annotated[str, _action]
    args: Annotated[Arguments, converter.Selected("action", _ARGUMENTS, NoArguments)]

    @property
    def receiver(self) -> names.SignerName:
        return names.SignerName(self.node)


def lifetime_problem(*, iat: int, exp: int, now: int) -> str:
    """Return why a message issued at `iat`, expiring at `exp`, is rejected; empty if not."""
    if exp <= iat:
        return "exp is not after iat"
    if exp - iat > limits.MAX_REQUEST_LIFE:
        return f"exp is {exp - iat} s after iat, its lifetime may be {limits.MAX_REQUEST_LIFE} s"
    if iat > now + limits.MAX_REQUEST_AHEAD:
        return f"iat is {iat - now} s in the future (check both clocks)"
    if now >= exp:
        return f"expired {now - exp} s ago (check both clocks)"
    return ""


def misdirection(request: Request, *, signer: names.SignerName, me: names.NodeName) -> str:
    """Return why a request is not from its signer or not for this node; empty if it is both."""
    if request.caller != signer:
        return f"iss {request.caller.caller} is not the signer, {signer.caller}"
    if request.node != me:
        return f"aud is {request.node}: the request is not for {me}"
    return ""


_OF_ROLLOUTS = (Deploy, Disable, Enable, RunOnce, StatusRequest)


def _rights(request: Request) -> tuple[str, ...]:
    """Return the rights that the caller needs, all of them."""
    args = request.args
    rights = args.rights if isinstance(args, Deploy) else (request.action,)
    rollout = args.rollout if isinstance(args, _OF_ROLLOUTS) else None
    if rollout is not None and rollout.taken_over_by(request.caller.caller):
        return (*rights, TAKEOVER)
    return rights


def refusal(request: Request, *, now: int, policy: Policy | None) -> str:
    """Return why a node rejects a request; empty if it accepts it.

    The caller checks for repetition afterwards: only accepted requests may use space in that
    record.
    """
    problem = lifetime_problem(iat=request.iat, exp=request.exp, now=now)
    if problem:
        return problem
    for right in _rights(request):
        decision = decide(policy, request.caller.caller, right)
        if not decision.allowed:
            return decision.reason
    return ""


class ReplySubject(Protocol):
    """What a reply answers: a request to a node, or a command to a rollout controller."""

    @property
    def caller(self) -> names.SignerName:
        """Return the sender."""

    @property
    def receiver(self) -> names.SignerName:
        """Return the receiver."""

    @property
    def jti(self) -> str:
        """Return the id, a UUID."""


class NodeReply(converter.Message):
    """A node's reply, as its sender `iss` signs it for `aud`; empty after an error."""

    SCHEMA: ClassVar = SCHEMA
    WHERE: ClassVar = "reply"
    LIMIT: ClassVar = limits.MAX_REPLY
    node: Annotated[Caller, converter.Key("iss")]
    caller: Annotated[Caller, converter.Key("aud")]
    iat: Annotated[int, converter.AllowedRange(minimum=0)]
    exp: Annotated[int, converter.AllowedRange(minimum=0)]
    in_reply_to: Annotated[str, names.parse_uuid]
    ok: bool
    result: Mapping[str, Json] = field(default_factory=dict)
    error: Annotated[str | None, partial(parse_line, what="error")] = None

    def __post_init__(self) -> None:
        """Check that `ok` is right."""
        if self.ok != (self.error is None) or (self.result and not self.ok):
            raise InvalidInputError("has either ok and a result, or an error")

    def to_dict(self) -> dict[str, Json]:
        """Return the claims: an empty result, too."""
        return {**super().to_dict(), **({"result": dict(self.result)} if self.ok else {})}


def reply_refusal(
    reply: NodeReply, *, signer: names.SignerName, request: ReplySubject, now: int
) -> str:
    """Return why a verified reply does not answer a request; empty if it does."""
    if reply.node != signer:
        return f"iss {reply.node.caller} is not the signer, {signer.caller}"
    if reply.node != request.receiver:
        return f"{request.receiver} was asked, {reply.node} answered"
    if reply.caller != request.caller:
        return f"aud is {reply.caller.caller}: the reply is not for {request.caller.caller}"
    if reply.in_reply_to != request.jti:
        return "in_reply_to is another request"
    return lifetime_problem(iat=reply.iat, exp=reply.exp, now=now)


# The default lifetime of a message in seconds, which allows for differing clocks.
LIFE = 60


def ask(
    signer: MessageSigner,
    node: names.NodeName,
    action: str,
    args: Arguments,
    *,
    clock: Clock,
    life: int = LIFE,
) -> tuple[Request, bytes]:
    """Return a new request, for at most `MAX_REQUEST_LIFE` seconds, and its signed message."""
    now = int(clock.now().timestamp())
    request = Request(
        caller=signer.name,
        node=node,
        iat=now,
        exp=now + min(life, limits.MAX_REQUEST_LIFE),
        jti=str(uuid.uuid4()),
        action=action,
        args=args,
    )
    return request, signer.sign(_bytes(request.to_dict()), MessageKind.REQUEST)


def answer(
    signer: MessageSigner,
    request: ReplySubject,
    outcome: Mapping[str, Json] | str,
    *,
    clock: Clock,
) -> bytes:
    now = int(clock.now().timestamp())
    reply = NodeReply(
        node=signer.name,
        caller=request.caller,
        iat=now,
        exp=now + LIFE,
        in_reply_to=request.jti,
        ok=not isinstance(outcome, str),
        result={} if isinstance(outcome, str) else outcome,
        error=_error(outcome) if isinstance(outcome, str) else None,
    )
    return signer.sign(_bytes(reply.to_dict()), MessageKind.REPLY)


def _error(text: str) -> str:
    """Return an error as one line that its caller accepts."""
    return cut_to_bytes(one_line(text), limits.MAX_REPLY_ERROR)


def read_answer(
    verifier: Verifier, token: bytes, request: ReplySubject, *, clock: Clock
) -> NodeReply:
    """Return the verified reply to a request.

    Raises:
        IntegrityError: The signature is invalid, or the reply is for another request.
        InvalidInputError: The reply is malformed.
    """
    signed = verifier.verify(token, MessageKind.REPLY)
    reply = NodeReply.parse(signed.payload)
    now = int(clock.now().timestamp())
    problem = reply_refusal(reply, signer=signed.signer, request=request, now=now)
    if problem:
        raise IntegrityError(problem, where=f"reply of {signed.signer}")
    return reply


def _bytes(claims: Mapping[str, Json]) -> bytes:
    return json.dumps(claims, separators=(",", ":"), ensure_ascii=False).encode()
