"""Requests from one signer to one node: what they say, and whether a node does it.

Owns: the claims of requests and replies and their admission. Refuses to know: signatures, time,
the disk. Whoever calls has verified the bytes before they come here, and remembers the id of an
admitted request before it is acted upon.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.names import (
    NodeName,
    RunId,
    SignerName,
    parse_tag,
    parse_uuid,
)
from localpuppet.base.formats.text import parse_line
from localpuppet.base.formats.times import parse_duration
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.awaited import MAX_AWAITED, Awaited
from localpuppet.fleet.requests.compile import Compile
from localpuppet.fleet.requests.deploy import Deploy
from localpuppet.fleet.requests.lifetime import lifetime_problem
from localpuppet.fleet.requests.rollout import MAX_HOLD, MAX_STEP, OfRollout, claimed
from localpuppet.fleet.requests.status import StatusRequest
from localpuppet.fleet.trust.policy import REQUESTS, TAKEOVER, Policy, decide
from localpuppet.node.puppet.changes import parse_salt

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
        rollout: The rollout whose hold it is, apart from the caller's own; it has a length, of at
            most `MAX_HOLD` seconds.
    """

    message: str
    length: str | None = None
    rollout: OfRollout | None = None

    @property
    def seconds(self) -> float | None:
        """The length in seconds."""
        return None if self.length is None else parse_duration(self.length, what="length")

    @classmethod
    def read(cls, fields: Fields) -> "Disable":
        """Return the arguments.

        Raises:
            InvalidInputError: They are refused.
        """
        fields.only(("message", "for", "rollout"))
        found = cls(
            message=fields.parsed("message", partial(parse_line, what="message")),
            length=fields.parsed("for", _length) if "for" in fields else None,
            rollout=OfRollout.read_if_there(fields, step=False),
        )
        if found.rollout is not None and not 0 < (found.seconds or 0) <= MAX_HOLD:
            raise InvalidInputError(
                f"a rollout's hold is not for up to {MAX_HOLD:g} s", where="request.args.for"
            )
        return found

    def to_dict(self) -> dict[str, Json]:
        """Return the JSON form."""
        length: dict[str, Json] = {} if self.length is None else {"for": self.length}
        return {"message": self.message, **length, **claimed(self.rollout)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Enable:
    """The arguments of `enable`: end the caller's own hold.

    Attributes:
        rollout: End that of this rollout in its place.
    """

    rollout: OfRollout | None = None

    @classmethod
    def read(cls, fields: Fields) -> "Enable":
        """Return the arguments.

        Raises:
            InvalidInputError: They are refused.
        """
        fields.only(("rollout",))
        return cls(rollout=OfRollout.read_if_there(fields, step=False))

    def to_dict(self) -> dict[str, Json]:
        """Return the JSON form."""
        return claimed(self.rollout)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOnce:
    """The arguments of `runonce`: run Puppet now.

    Attributes:
        noop: Only show what would change.
        tags: Apply only what has one of these tags of Puppet's; empty for everything.
        rollout: The step that the run is: it runs through this rollout's hold, alone, and once.
        after: The entries that the node is to have in its view before it takes the step; nodes of
            earlier versions refuse a request that names some.
        changes: The salt with which the node tells what the run would change, once it is over;
            empty where nobody wants to know. With noop in a rollout only; as `after`.
        looked: The step of this rollout that was a noop run, and whose changes were approved: the
            node begins only soon after it. 0 if that is not asked for.
    """

    noop: bool = False
    tags: tuple[str, ...] = ()
    rollout: OfRollout | None = None
    after: tuple[Awaited, ...] = ()
    changes: str = ""
    looked: int = 0

    @classmethod
    def read(cls, fields: Fields) -> "RunOnce":
        """Return the arguments.

        Raises:
            InvalidInputError: They are refused; so is an empty list of tags, which somebody who
                filtered too much would be surprised by.
        """
        fields.only(("noop", "tags", "rollout", "after", "changes", "looked"))
        found = cls(
            noop=fields.boolean("noop") if "noop" in fields else False,
            tags=fields.parsed_list("tags", parse_tag, minimum=1, maximum=MAX_TAGS)
            if "tags" in fields
            else (),
            rollout=OfRollout.read_if_there(fields, step=True),
            after=tuple(map(Awaited.read, fields.inner_list("after", maximum=MAX_AWAITED)))
            if "after" in fields
            else (),
            changes=fields.parsed("changes", parse_salt) if "changes" in fields else "",
            looked=fields.integer("looked", minimum=1, maximum=MAX_STEP)
            if "looked" in fields
            else 0,
        )
        if found.looked and found.rollout is None:
            raise InvalidInputError("goes with a rollout only", where="request.args.looked")
        if found.after and found.rollout is None:
            raise InvalidInputError("goes with a rollout only", where="request.args.after")
        if found.changes and (found.rollout is None or not found.noop):
            raise InvalidInputError(
                "goes with noop in a rollout only", where="request.args.changes"
            )
        return found

    def to_dict(self) -> dict[str, Json]:
        """Return the JSON form."""
        tags: dict[str, Json] = {"tags": list(self.tags)} if self.tags else {}
        after: dict[str, Json] = {"after": [one.to_dict() for one in self.after]}
        return {
            "noop": self.noop,
            **tags,
            **claimed(self.rollout),
            **(after if self.after else {}),
            **({"changes": self.changes} if self.changes else {}),
            **({"looked": self.looked} if self.looked else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class OfRun:
    """The arguments of `report` and `log`: of which run.

    Attributes:
        run: Its id; `None` for the newest.
    """

    run: RunId | None = None

    @classmethod
    def named(cls, run: str | None) -> "OfRun":
        """Return the arguments for the run that a person names; the newest for `None`.

        Raises:
            InvalidInputError: It is not a whole id: another node's runs are not known here.
        """
        return cls(run=None if run is None else RunId.parse(run))

    @classmethod
    def read(cls, fields: Fields) -> "OfRun":
        """Return the arguments.

        Raises:
            InvalidInputError: They are refused.
        """
        fields.only(("run",))
        return cls(run=fields.parsed("run", RunId.parse) if "run" in fields else None)

    def to_dict(self) -> dict[str, Json]:
        """Return the JSON form."""
        return {} if self.run is None else {"run": str(self.run)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """The arguments of an action that takes none."""

    @classmethod
    def read(cls, fields: Fields) -> "Nothing":
        """Return them.

        Raises:
            InvalidInputError: There are some.
        """
        fields.only(())
        return cls()

    def to_dict(self) -> dict[str, Json]:
        """Return the JSON form."""
        return {}


Arguments = Compile | Deploy | Disable | Enable | RunOnce | OfRun | StatusRequest | Nothing
_ARGUMENTS: Mapping[str, type[Arguments]] = {
    "compile": Compile,
    "deploy": Deploy,
    "disable": Disable,
    "enable": Enable,
    "log": OfRun,
    "report": OfRun,
    "runonce": RunOnce,
    "status": StatusRequest,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What somebody asks of one node.

    Attributes:
        caller: Who asks (claim `iss`, its caller id).
        node: Who is asked (claim `aud`).
        iat: When it was issued, seconds since 1970.
        exp: When it expires.
        jti: Its id, a UUID; taken once.
        action: One of `fleet.trust.policy.REQUESTS`.
        args: What the action needs.
    """

    caller: SignerName
    node: NodeName
    iat: int
    exp: int
    jti: str
    action: str
    args: Arguments

    @property
    def receiver(self) -> SignerName:
        """Who is asked, as a signer of replies."""
        return SignerName(self.node)

    @classmethod
    def parse(cls, payload: bytes) -> "Request":
        """Return the request in verified bytes.

        Raises:
            InvalidInputError: A claim is missing, unknown, or not of its type.
        """
        fields = Fields.parse(payload, where="request", limit=MAX_REQUEST)
        fields.only(_CLAIMS)
        action = fields.parsed("action", _action)
        return cls(
            caller=fields.parsed("iss", SignerName.parse_caller),
            node=fields.parsed("aud", NodeName.parse),
            iat=fields.integer("iat", minimum=0),
            exp=fields.integer("exp", minimum=0),
            jti=fields.parsed("jti", parse_uuid),
            action=action,
            args=_ARGUMENTS.get(action, Nothing).read(fields.inner("args")),
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


def _action(text: str) -> str:
    if text not in REQUESTS:
        raise InvalidInputError(
            f"the action {text[:40]!r} is unknown", hint=f"one of {', '.join(REQUESTS)}"
        )
    return text


def _length(text: str) -> str:
    parse_duration(text, what="length")
    return text


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


_OF_ROLLOUTS = (Deploy, Disable, Enable, RunOnce, StatusRequest)


def _rights(request: Request) -> tuple[str, ...]:
    """Return what the node's policy must allow the caller; all of it."""
    args = request.args
    found = args.rights if isinstance(args, Deploy) else (request.action,)
    rollout = args.rollout if isinstance(args, _OF_ROLLOUTS) else None
    if rollout is not None and rollout.taken_over_by(request.caller.caller):
        return (*found, TAKEOVER)
    return found


def refusal(request: Request, *, now: int, policy: Policy | None) -> str:
    """Return why a node does not do what its caller asks; empty when it does.

    What remains to be asked is whether the id was seen before: only what passes here may take
    room in that memory.

    Args:
        request: A request that is its signer's and for this node.
        now: The node's clock, seconds since 1970.
        policy: Its policy; `None` where there is none.
    """
    problem = lifetime_problem(iat=request.iat, exp=request.exp, now=now)
    if problem:
        return problem
    for right in _rights(request):
        decision = decide(policy, request.caller.caller, right)
        if not decision.allowed:
            return decision.reason
    return ""
