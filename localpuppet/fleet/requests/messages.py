"""Convert requests and replies to signed messages, and judge replies."""

import json
import uuid
from collections.abc import Mapping
from dataclasses import field
from functools import partial
from typing import Annotated, ClassVar, Protocol

from localpuppet.base.errors import IntegrityError, InvalidInputError
from localpuppet.base.formats.names import NodeName, SignerName, parse_uuid
from localpuppet.base.formats.records import AllowedRange, Key, Message
from localpuppet.base.formats.text import one_line, parse_line
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.ports import Clock
from localpuppet.fleet.requests.request import (
    MAX_LIFETIME,
    Arguments,
    Caller,
    Request,
    lifetime_problem,
)
from localpuppet.fleet.trust.signing import MessageKind, MessageSigner, Verifier

# The largest reply is the end of a log; signed and in base64 it must fit into a value on the bus.
MAX_REPLY = 320 * 1024
SCHEMA = 1


class ReplySubject(Protocol):
    """What a reply answers: a request to a node, or a command to a rollout controller."""

    @property
    def caller(self) -> SignerName:
        """Return the sender."""

    @property
    def receiver(self) -> SignerName:
        """Return the receiver."""

    @property
    def jti(self) -> str:
        """Return the id, a UUID."""


class NodeReply(Message):
    """A node's reply.

    Attributes:
        node: The sender of the reply (claim `iss`, its caller id).
        caller: The receiver of the reply (claim `aud`, its caller id).
        iat: When it was issued, seconds since 1970.
        exp: When it expires.
        in_reply_to: The id of the request.
        ok: Whether the node executed the request.
        result: The result; empty after an error.
        error: The error as one line; `None` after success.
    """

    SCHEMA: ClassVar = SCHEMA
    WHERE: ClassVar = "reply"
    LIMIT: ClassVar = MAX_REPLY
    node: Annotated[Caller, Key("iss")]
    caller: Annotated[Caller, Key("aud")]
    iat: Annotated[int, AllowedRange(minimum=0)]
    exp: Annotated[int, AllowedRange(minimum=0)]
    in_reply_to: Annotated[str, parse_uuid]
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


def refusal(reply: NodeReply, *, signer: SignerName, request: ReplySubject, now: int) -> str:
    """Return why a reply does not answer a request; empty if it does.

    Args:
        reply: The reply in the verified bytes.
        signer: The signer of the bytes.
        request: The request of this caller.
        now: The caller's clock, seconds since 1970.
    """
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
MAX_ERROR = 900


def ask(
    signer: MessageSigner,
    node: NodeName,
    action: str,
    args: Arguments,
    *,
    clock: Clock,
    life: int = LIFE,
) -> tuple[Request, bytes]:
    """Return a new request and its signed message.

    Args:
        signer: Signs as the caller.
        node: The receiver.
        action: One of `fleet.trust.policy.REQUESTS`.
        args: The arguments of the action.
        clock: The caller's clock.
        life: The lifetime in seconds, at most `MAX_LIFETIME`.
    """
    now = int(clock.now().timestamp())
    request = Request(
        caller=signer.name,
        node=node,
        iat=now,
        exp=now + min(life, MAX_LIFETIME),
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
    """Return the signed reply to a request.

    Args:
        signer: Signs as the node.
        request: The request.
        outcome: The result, or the error as one line.
        clock: The node's clock.
    """
    now = int(clock.now().timestamp())
    reply = NodeReply(
        node=signer.name,
        caller=request.caller,
        iat=now,
        exp=now + LIFE,
        in_reply_to=request.jti,
        ok=not isinstance(outcome, str),
        result={} if isinstance(outcome, str) else outcome,
        error=one_line(outcome)[:MAX_ERROR] if isinstance(outcome, str) else None,
    )
    return signer.sign(_bytes(reply.to_dict()), MessageKind.REPLY)


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
    problem = refusal(reply, signer=signed.signer, request=request, now=now)
    if problem:
        raise IntegrityError(problem, where=f"reply of {signed.signer}")
    return reply


def _bytes(claims: Mapping[str, Json]) -> bytes:
    return json.dumps(claims, separators=(",", ":"), ensure_ascii=False).encode()
