"""Requests and replies as signed bytes, at both ends.

Owns: the order in which a node looks at a request: size, signature, form, caller, audience,
life, policy, and last whether it was seen before, which writes. Refuses to know: how the bytes
came here and what is done with a request.

Invariant: `receive` returns a request at most once, over restarts and in all processes.
"""

import functools
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from localpuppet.errors import IntegrityError, InvalidInputError, LocalpuppetError
from localpuppet.files import read_user_file, refuse_foreign
from localpuppet.model import reply as replies
from localpuppet.model import request as requests
from localpuppet.model.life import MAX_LIFE
from localpuppet.model.names import NodeName
from localpuppet.model.policy import MAX_POLICY, Policy
from localpuppet.model.reply import Reply
from localpuppet.model.request import Arguments, Request
from localpuppet.model.text import one_line
from localpuppet.model.values import Json
from localpuppet.ports import Clock
from localpuppet.seen import Seen
from localpuppet.signing import Kind, Signer, Verifier

# Seconds that a message is good for unless it is to be longer, in case clocks differ.
LIFE = 60
# Ids are kept longer than their messages live: a clock that is set back by less than that
# brings none of them back to life.
KEEP = 3600
MAX_ERROR = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A request that is not done.

    Attributes:
        reason: Why, one line; for the log.
        request: What was asked, if its caller is to be told: it is signed by that caller, for
            this node, and not admitted already. A message that comes twice has its answer; a
            second one could overtake it.
    """

    reason: str
    request: Request | None


class Reception:
    """Where the requests to this node are looked at.

    Args:
        me: This node.
        verifier: Tells whose signatures hold.
        policy: The policy file, read for each request; it need not exist.
        seen: The ids that were admitted.
        clock: The node's clock.
    """

    def __init__(
        self, *, me: NodeName, verifier: Verifier, policy: Path, seen: Seen, clock: Clock
    ) -> None:
        self._me = me
        self._verifier = verifier
        self._policy = policy
        self._seen = seen
        self._clock = clock

    def receive(self, token: bytes) -> Request | Refusal:
        """Return a request that is to be done now, or why it is not. Blocks for a disk write."""
        try:
            signed = self._verifier.verify(token, Kind.REQUEST)
            request = Request.parse(signed.payload)
            reason = requests.misdirection(request, signer=signed.signer, me=self._me)
            if reason:
                return Refusal(reason=reason, request=None)
        except LocalpuppetError as error:
            return Refusal(reason=one_line(str(error)), request=None)
        try:
            now = int(self._clock.now().timestamp())
            reason = requests.refusal(request, now=now, policy=read_policy(self._policy))
            if reason:
                return Refusal(reason=reason, request=request)
            if self._seen.add("request", f"{request.caller} {request.jti}", request.exp + KEEP):
                return request
        except LocalpuppetError as error:
            return Refusal(reason=one_line(str(error)), request=request)
        return Refusal(reason=f"replay: {request.jti} was admitted already", request=None)


def read_policy(path: Path) -> Policy | None:
    """Return the policy of a node; `None` where it has none, which denies everything.

    Raises:
        InvalidInputError: The file is refused, or others could write to it or its directory.
    """
    try:
        path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidInputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    refuse_foreign(path.parent)
    return _parsed(read_user_file(path, limit=MAX_POLICY), str(path))


@functools.lru_cache(maxsize=1)
def _parsed(data: bytes, where: str) -> Policy:
    """Return the policy in these bytes, which seldom are others than the last time."""
    return Policy.parse(data, where=where)


def ask(
    signer: Signer, node: NodeName, action: str, args: Arguments, *, clock: Clock, life: int = LIFE
) -> tuple[Request, bytes]:
    """Return a new request and the message for it.

    Args:
        signer: Who asks.
        node: Who is asked.
        action: One of `policy.REQUESTS`.
        args: What it needs.
        clock: The caller's clock.
        life: For how many seconds it is valid, at most `MAX_LIFE`.
    """
    now = int(clock.now().timestamp())
    request = Request(
        caller=signer.name,
        node=node,
        iat=now,
        exp=now + min(life, MAX_LIFE),
        jti=str(uuid.uuid4()),
        action=action,
        args=args,
    )
    return request, signer.sign(_bytes(request.to_dict()), Kind.REQUEST)


def answer(
    signer: Signer,
    request: Request,
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
        life: For how many seconds it is valid, at most `MAX_LIFE`.
    """
    now = int(clock.now().timestamp())
    reply = Reply(
        node=signer.name,
        caller=request.caller,
        iat=now,
        exp=now + min(life, MAX_LIFE),
        in_reply_to=request.jti,
        ok=not isinstance(outcome, str),
        result={} if isinstance(outcome, str) else outcome,
        error=one_line(outcome)[:MAX_ERROR] if isinstance(outcome, str) else None,
    )
    return signer.sign(_bytes(reply.to_dict()), Kind.REPLY)


def read_answer(verifier: Verifier, token: bytes, request: Request, *, clock: Clock) -> Reply:
    """Return the reply in a message, if it is the one that a request waits for.

    Raises:
        IntegrityError: Its signature does not hold, or it answers something else.
        InvalidInputError: It cannot be read.
    """
    signed = verifier.verify(token, Kind.REPLY)
    reply = Reply.parse(signed.payload)
    now = int(clock.now().timestamp())
    problem = replies.refusal(reply, signer=signed.signer, request=request, now=now)
    if problem:
        raise IntegrityError(problem, where=f"reply of {signed.signer}")
    return reply


def _bytes(claims: Mapping[str, Json]) -> bytes:
    return json.dumps(claims, separators=(",", ":"), ensure_ascii=False).encode()
