"""Convert requests and replies to signed messages, and read replies."""

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
from localpuppet.fleet.requests.reply import NodeReply, ReplySubject
from localpuppet.fleet.requests.request import Arguments, Request
from localpuppet.fleet.trust.signing import MessageKind, MessageSigner, Verifier

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
    problem = replies.refusal(reply, signer=signed.signer, request=request, now=now)
    if problem:
        raise IntegrityError(problem, where=f"reply of {signed.signer}")
    return reply


def _bytes(claims: Mapping[str, Json]) -> bytes:
    return json.dumps(claims, separators=(",", ":"), ensure_ascii=False).encode()
