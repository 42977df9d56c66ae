"""The reply of a node to one request: its claims, and whether it answers the request."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.names import SignerName, parse_uuid
from localpuppet.base.formats.text import parse_line
from localpuppet.base.formats.values import Json
from localpuppet.fleet.requests.lifetime import lifetime_problem

# The largest reply is the end of a log; signed and in base64 it must fit into a value on the bus.
MAX_REPLY = 320 * 1024
SCHEMA = 1
_CLAIMS = ("schema", "iss", "aud", "iat", "exp", "in_reply_to", "ok", "result", "error")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReply:
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

    node: SignerName
    caller: SignerName
    iat: int
    exp: int
    in_reply_to: str
    ok: bool
    result: Mapping[str, Json]
    error: str | None

    @classmethod
    def parse(cls, payload: bytes) -> "NodeReply":
        """Read the reply in verified bytes.

        Raises:
            InvalidInputError: A claim is missing, unknown or of the wrong type, or `ok` and `error`
                contradict each other.
        """
        fields = Fields.parse(payload, where="reply", limit=MAX_REPLY)
        fields.schema(SCHEMA)
        fields.only(_CLAIMS)
        ok = fields.boolean("ok")
        if ok == ("error" in fields) or ok != ("result" in fields):
            raise InvalidInputError("has either ok and a result, or an error", where="reply")
        return cls(
            node=fields.parsed("iss", SignerName.parse_caller),
            caller=fields.parsed("aud", SignerName.parse_caller),
            iat=fields.integer("iat", minimum=0),
            exp=fields.integer("exp", minimum=0),
            in_reply_to=fields.parsed("in_reply_to", parse_uuid),
            ok=ok,
            result=fields.mapping("result") if ok else {},
            error=None if ok else fields.parsed("error", partial(parse_line, what="error")),
        )

    def to_dict(self) -> dict[str, Json]:
        """Return the claims."""
        outcome: dict[str, Json] = (
            {"result": dict(self.result)} if self.ok else {"error": self.error}
        )
        return {
            "schema": SCHEMA,
            "iss": self.node.caller,
            "aud": self.caller.caller,
            "iat": self.iat,
            "exp": self.exp,
            "in_reply_to": self.in_reply_to,
            "ok": self.ok,
            **outcome,
        }


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
