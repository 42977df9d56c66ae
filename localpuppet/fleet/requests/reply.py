"""A node's answer to one request.

Owns: the claims of replies, and whether one is the answer that a caller waits for. Refuses to
know: signatures, time, what the result of an action holds.
"""

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

# The longest is the end of a log; signed and in base64 it must fit into a value on the bus.
MAX_REPLY = 320 * 1024
_CLAIMS = ("iss", "aud", "iat", "exp", "in_reply_to", "ok", "result", "error")


class Asked(Protocol):
    """What a reply is to: a request to a node, or a word to who goes on with a rollout."""

    @property
    def caller(self) -> SignerName:
        """Who asked."""
        ...

    @property
    def receiver(self) -> SignerName:
        """Who was asked."""
        ...

    @property
    def jti(self) -> str:
        """The id of what was asked, a UUID."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a node answers.

    Attributes:
        node: Who answers (claim `iss`, its caller id).
        caller: Who asked (claim `aud`, its caller id).
        iat: When it was issued, seconds since 1970.
        exp: When it expires.
        in_reply_to: The id of the request.
        ok: Whether the node did what was asked.
        result: What came of it; empty when it did not.
        error: Why it did not, one line; `None` when it did.
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
    def parse(cls, payload: bytes) -> "Reply":
        """Return the reply in verified bytes.

        Raises:
            InvalidInputError: A claim is missing, unknown, not of its type, or `ok` and `error`
                contradict each other.
        """
        fields = Fields.parse(payload, where="reply", limit=MAX_REPLY)
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
            "iss": self.node.caller,
            "aud": self.caller.caller,
            "iat": self.iat,
            "exp": self.exp,
            "in_reply_to": self.in_reply_to,
            "ok": self.ok,
            **outcome,
        }


def refusal(reply: Reply, *, signer: SignerName, request: Asked, now: int) -> str:
    """Return why a reply does not answer a request; empty when it does.

    Args:
        reply: What was in the verified bytes.
        signer: Whose signature it was.
        request: What was asked, by us.
        now: Our clock, seconds since 1970.
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
