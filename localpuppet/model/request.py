"""Requests from one signer to one node: what they say, and whether a node does it.

Owns: the claims of requests and replies and their admission. Refuses to know: signatures, time,
the disk. Whoever calls has verified the bytes before they come here, and remembers the id of an
admitted request before it is acted upon.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from localpuppet.errors import InvalidInputError
from localpuppet.model import claims
from localpuppet.model.duration import parse_duration
from localpuppet.model.names import NodeName, SignerName, parse_tag
from localpuppet.model.policy import REQUESTS, Policy, decide
from localpuppet.model.strict_json import parse_object
from localpuppet.model.values import Json, at

MAX_REQUEST = 64 * 1024
MAX_TAGS = 64
_CLAIMS = ("iss", "aud", "iat", "exp", "jti", "action", "args")


@dataclass(frozen=True, slots=True, kw_only=True)
class Disable:
    """The arguments of `disable`: put the node on hold.

    Attributes:
        message: Why, in one line.
        length: The time after which the hold ends by itself, as people write it (`2h`); `None`
            for never.
    """

    message: str
    length: str | None = None

    @property
    def seconds(self) -> float | None:
        """The length in seconds."""
        return None if self.length is None else parse_duration(self.length, what="length")

    @classmethod
    def from_dict(cls, raw: Mapping[str, Json]) -> "Disable":
        """Return the arguments.

        Raises:
            InvalidInputError: They are refused.
        """
        claims.check_keys(raw, ("message", "for"), where="args")
        found = cls(
            message=claims.line(raw, "message", where="args"),
            length=claims.text(raw, "for", where="args") if "for" in raw else None,
        )
        try:
            _ = found.seconds
        except InvalidInputError as error:
            raise error.at("args.for") from error
        return found

    def to_dict(self) -> dict[str, Json]:
        """Return the JSON form."""
        return {"message": self.message, **({} if self.length is None else {"for": self.length})}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOnce:
    """The arguments of `runonce`: run Puppet now.

    Attributes:
        noop: Only show what would change.
        tags: Apply only what has one of these tags of Puppet's; empty for everything.
    """

    noop: bool = False
    tags: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, raw: Mapping[str, Json]) -> "RunOnce":
        """Return the arguments.

        Raises:
            InvalidInputError: They are refused; so is an empty list of tags, which somebody who
                filtered too much would be surprised by.
        """
        claims.check_keys(raw, ("noop", "tags"), where="args")
        noop = claims.boolean(raw, "noop", where="args") if "noop" in raw else False
        if "tags" not in raw:
            return cls(noop=noop)
        listed = raw["tags"]
        if not isinstance(listed, list) or not 0 < len(listed) <= MAX_TAGS:
            raise InvalidInputError(f"must be a list of 1 to {MAX_TAGS} tags", where="args.tags")
        tags = []
        for number, tag in enumerate(listed):
            where = at("args.tags", number)
            if not isinstance(tag, str):
                raise InvalidInputError("is no text", where=where)
            tags.append(parse_tag(tag, where=where))
        return cls(noop=noop, tags=tuple(tags))

    def to_dict(self) -> dict[str, Json]:
        """Return the JSON form."""
        return {"noop": self.noop, **({"tags": list(self.tags)} if self.tags else {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """The arguments of an action that takes none."""

    @classmethod
    def from_dict(cls, raw: Mapping[str, Json]) -> "Nothing":
        """Return them.

        Raises:
            InvalidInputError: There are some.
        """
        claims.check_keys(raw, (), where="args")
        return cls()

    def to_dict(self) -> dict[str, Json]:
        """Return the JSON form."""
        return {}


Arguments = Disable | RunOnce | Nothing
_ARGUMENTS: Mapping[str, type[Arguments]] = {"disable": Disable, "runonce": RunOnce}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What somebody asks of one node.

    Attributes:
        caller: Who asks (claim `iss`, its caller id).
        node: Who is asked (claim `aud`).
        iat: When it was issued, seconds since 1970.
        exp: When it expires.
        jti: Its id, a UUID; taken once.
        action: One of `policy.REQUESTS`.
        args: What the action needs.
    """

    caller: SignerName
    node: NodeName
    iat: int
    exp: int
    jti: str
    action: str
    args: Arguments

    @classmethod
    def parse(cls, payload: bytes) -> "Request":
        """Return the request in verified bytes.

        Raises:
            InvalidInputError: A claim is missing, unknown, or not of its type.
        """
        raw = parse_object(payload, where="request", limit=MAX_REQUEST)
        claims.check_keys(raw, _CLAIMS, where="request")
        action = claims.text(raw, "action", where="request")
        if action not in REQUESTS:
            raise InvalidInputError(
                f"the action {action[:40]!r} is unknown",
                where="request.action",
                hint=f"one of {', '.join(REQUESTS)}",
            )
        try:
            args = _ARGUMENTS.get(action, Nothing).from_dict(
                claims.mapping(raw, "args", where="request")
            )
        except InvalidInputError as error:
            raise (error if error.where.startswith("request") else error.at("request")) from error
        return cls(
            caller=claims.caller(raw, "iss", where="request"),
            node=_audience(raw),
            iat=claims.whole(raw, "iat", where="request"),
            exp=claims.whole(raw, "exp", where="request"),
            jti=claims.identifier(raw, "jti", where="request"),
            action=action,
            args=args,
        )

    def to_dict(self) -> dict[str, Json]:
        """Return the claims."""
        return {
            "iss": self.caller.caller,
            "aud": self.node,
            "iat": self.iat,
            "exp": self.exp,
            "jti": self.jti,
            "action": self.action,
            "args": self.args.to_dict(),
        }


def _audience(raw: Mapping[str, Json]) -> NodeName:
    value = raw.get("aud")
    if not isinstance(value, str):
        raise InvalidInputError("must be the name of exactly one node", where="request.aud")
    try:
        return NodeName.parse(value)
    except InvalidInputError as error:
        raise error.at("request.aud") from error


def misdirection(request: Request, *, signer: SignerName, me: NodeName) -> str:
    """Return why a request is not its signer's, or not for this node; empty when it is both.

    Args:
        request: What was in the verified bytes.
        signer: Whose signature it was.
        me: The node.
    """
    if request.caller != signer:
        return f"iss {request.caller.caller} is not the signer, {signer.caller}"
    if request.node != me:
        return f"aud is {request.node}: the request is not for {me}"
    return ""


def refusal(request: Request, *, now: int, policy: Policy | None) -> str:
    """Return why a node does not do what its caller asks; empty when it does.

    What remains to be asked is whether the id was seen before: only what passes here may take
    room in that memory.

    Args:
        request: A request that is its signer's and for this node.
        now: The node's clock, seconds since 1970.
        policy: Its policy; `None` where there is none.
    """
    problem = claims.life_problem(iat=request.iat, exp=request.exp, now=now)
    if problem:
        return problem
    decision = decide(policy, request.caller.caller, request.action)
    return "" if decision.allowed else decision.reason
