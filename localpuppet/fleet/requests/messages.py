"""Requests and replies as signed bytes: made by callers, and read again by them."""

import json
import uuid
from collections.abc import Mapping

from localpuppet.base.errors import IntegrityError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.ports import Clock
from localpuppet.fleet.requests import reply as replies
from localpuppet.fleet.requests.lifetime import MAX_LIFETIME
from localpuppet.fleet.requests.reply import Asked, Reply
from localpuppet.fleet.requests.request import Arguments, Request
from localpuppet.fleet.trust.signing import MessageKind, Signer, Verifier

# Seconds that a message is good for unless it is to be longer, in case clocks differ.
LIFE = 60
MAX_ERROR = 900


def ask(
    signer: Signer, node: NodeName, action: str, args: Arguments, *, clock: Clock, life: int = LIFE
) -> tuple[Request, bytes]:
    """Return a new request and the message for it.

    Args:
        signer: Who asks.
        node: Who is asked.
        action: One of `fleet.trust.policy.REQUESTS`.
        args: What it needs.
        clock: The caller's clock.
        life: For how many seconds it is valid, at most `MAX_LIFETIME`.
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
    signer: Signer,
    request: Asked,
    outcome: Mapping[str, Json] | str,
    *,
    clock: Clock,
    life: int = LIFE,
) -> bytes:
    """Return the message that answers a request.

    Args:
        signer: The node.
        request: What was asked.
        outcome: The result, or the one line that says why there is none.
        clock: The node's clock.
        life: For how many seconds it is valid, at most `MAX_LIFETIME`.
    """
    now = int(clock.now().timestamp())
    reply = Reply(
        node=signer.name,
        caller=request.caller,
        iat=now,
        exp=now + min(life, MAX_LIFETIME),
        in_reply_to=request.jti,
        ok=not isinstance(outcome, str),
        result={} if isinstance(outcome, str) else outcome,
        error=one_line(outcome)[:MAX_ERROR] if isinstance(outcome, str) else None,
    )
    return signer.sign(_bytes(reply.to_dict()), MessageKind.REPLY)


def read_answer(verifier: Verifier, token: bytes, request: Asked, *, clock: Clock) -> Reply:
    """Return the reply in a message, if it is the one that a request waits for.

    Raises:
        IntegrityError: Its signature does not hold, or it answers something else.
        InvalidInputError: It cannot be read.
    """
    signed = verifier.verify(token, MessageKind.REPLY)
    reply = Reply.parse(signed.payload)
    now = int(clock.now().timestamp())
    problem = replies.refusal(reply, signer=signed.signer, request=request, now=now)
    if problem:
        raise IntegrityError(problem, where=f"reply of {signed.signer}")
    return reply


def _bytes(claims: Mapping[str, Json]) -> bytes:
    return json.dumps(claims, separators=(",", ":"), ensure_ascii=False).encode()
