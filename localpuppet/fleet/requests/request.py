"""Requests from one signer to one node: their claims, and the decision to accept one.

- The caller of these functions verifies the bytes first, and records the id of an accepted request
  before it acts.
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
from localpuppet.fleet.inventory.awaited_entry import MAX_AWAITED, AwaitedEntry
from localpuppet.fleet.requests.chunk import ChunkArguments
from localpuppet.fleet.requests.compile import Compile
from localpuppet.fleet.requests.deploy import Deploy
from localpuppet.fleet.requests.lifetime import lifetime_problem
from localpuppet.fleet.requests.rollout import MAX_HOLD, MAX_STEP, RolloutReference, claimed
from localpuppet.fleet.requests.status import StatusRequest
from localpuppet.fleet.trust.policy import REQUESTS, TAKEOVER, Policy, decide
from localpuppet.node.puppet.changes import parse_salt

MAX_REQUEST = 64 * 1024
MAX_TAGS = 64
SCHEMA = 1
_CLAIMS = ("schema", "iss", "aud", "iat", "exp", "jti", "action", "args")


@dataclass(frozen=True, slots=True, kw_only=True)
class Disable:
    """The arguments of `disable`: put the node on hold.

    Attributes:
        message: The reason, one line.
        length: The time until the hold ends, as people write it (`2h`); `None` for no end.
        rollout: The rollout that owns the hold instead of the caller; its hold has a length of at
            most `MAX_HOLD` seconds.
    """

    message: str
    length: str | None = None
    rollout: RolloutReference | None = None

    @property
    def seconds(self) -> float | None:
        """Return the length in seconds."""
        return None if self.length is None else parse_duration(self.length, what="length")

    @classmethod
    def read(cls, fields: Fields) -> "Disable":
        """Read the arguments from JSON fields.

        Raises:
            InvalidInputError: They are invalid.
        """
        fields.only(("message", "for", "rollout"))
        arguments = cls(
            message=fields.parsed("message", partial(parse_line, what="message")),
            length=fields.parsed("for", _length) if "for" in fields else None,
            rollout=RolloutReference.read_if_there(fields, step=False),
        )
        if arguments.rollout is not None and not 0 < (arguments.seconds or 0) <= MAX_HOLD:
            raise InvalidInputError(
                f"a rollout's hold is not for up to {MAX_HOLD:g} s", where="request.args.for"
            )
        return arguments

    def to_dict(self) -> dict[str, Json]:
        """Return the JSON form."""
        length: dict[str, Json] = {} if self.length is None else {"for": self.length}
        return {"message": self.message, **length, **claimed(self.rollout)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Enable:
    """The arguments of `enable`: end the caller's own hold.

    Attributes:
        rollout: End this rollout's hold instead.
    """

    rollout: RolloutReference | None = None

    @classmethod
    def read(cls, fields: Fields) -> "Enable":
        """Read the arguments from JSON fields.

        Raises:
            InvalidInputError: They are invalid.
        """
        fields.only(("rollout",))
        return cls(rollout=RolloutReference.read_if_there(fields, step=False))

    def to_dict(self) -> dict[str, Json]:
        """Return the JSON form."""
        return claimed(self.rollout)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOnce:
    """The arguments of `runonce`: run Puppet now.

    Attributes:
        noop: Only show the changes.
        tags: Apply only resources with one of these Puppet tags; empty for all.
        rollout: The rollout step of the run: it passes this rollout's hold, runs alone, and once.
        awaited_entries: The entries that the node must have in its view before it takes the step.
        changes_salt: The salt with which the node reports the changes of the run; empty for no
            report. With noop in a rollout only.
        noop_step: The step of this rollout that was a noop run and whose changes were approved: the
            node starts only soon after it. 0 for none.
    """

    noop: bool = False
    tags: tuple[str, ...] = ()
    rollout: RolloutReference | None = None
    awaited_entries: tuple[AwaitedEntry, ...] = ()
    changes_salt: str = ""
    noop_step: int = 0

    @classmethod
    def read(cls, fields: Fields) -> "RunOnce":
        """Read the arguments from JSON fields.

        Raises:
            InvalidInputError: They are invalid. An empty list of tags is invalid too, because a
                complete run would surprise a caller whose filter removed all tags.
        """
        fields.only(("noop", "tags", "rollout", "awaited_entries", "changes_salt", "noop_step"))
        arguments = cls(
            noop=fields.boolean("noop") if "noop" in fields else False,
            tags=fields.parsed_list("tags", parse_tag, minimum=1, maximum=MAX_TAGS)
            if "tags" in fields
            else (),
            rollout=RolloutReference.read_if_there(fields, step=True),
            awaited_entries=tuple(
                map(AwaitedEntry.read, fields.inner_list("awaited_entries", maximum=MAX_AWAITED))
            )
            if "awaited_entries" in fields
            else (),
            changes_salt=fields.parsed("changes_salt", parse_salt)
            if "changes_salt" in fields
            else "",
            noop_step=fields.integer("noop_step", minimum=1, maximum=MAX_STEP)
            if "noop_step" in fields
            else 0,
        )
        if arguments.noop_step and arguments.rollout is None:
            raise InvalidInputError("is allowed in a rollout only", where="request.args.noop_step")
        if arguments.awaited_entries and arguments.rollout is None:
            raise InvalidInputError(
                "is allowed in a rollout only", where="request.args.awaited_entries"
            )
        if arguments.changes_salt and (arguments.rollout is None or not arguments.noop):
            raise InvalidInputError(
                "is allowed with noop in a rollout only", where="request.args.changes_salt"
            )
        return arguments

    def to_dict(self) -> dict[str, Json]:
        """Return the JSON form."""
        tags: dict[str, Json] = {"tags": list(self.tags)} if self.tags else {}
        awaited: dict[str, Json] = {
            "awaited_entries": [entry.to_dict() for entry in self.awaited_entries]
        }
        return {
            "noop": self.noop,
            **tags,
            **claimed(self.rollout),
            **(awaited if self.awaited_entries else {}),
            **({"changes_salt": self.changes_salt} if self.changes_salt else {}),
            **({"noop_step": self.noop_step} if self.noop_step else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunArguments:
    """The arguments of `report` and `log`.

    Attributes:
        run: The id of the run; `None` for the newest.
    """

    run: RunId | None = None

    @classmethod
    def named(cls, run: str | None) -> "RunArguments":
        """Return the arguments for a run id from a person; `None` means the newest run.

        Raises:
            InvalidInputError: It is not a complete id: the runs of other nodes are not known here.
        """
        return cls(run=None if run is None else RunId.parse(run))

    @classmethod
    def read(cls, fields: Fields) -> "RunArguments":
        """Read the arguments from JSON fields.

        Raises:
            InvalidInputError: They are invalid.
        """
        fields.only(("run",))
        return cls(run=fields.parsed("run", RunId.parse) if "run" in fields else None)

    def to_dict(self) -> dict[str, Json]:
        """Return the JSON form."""
        return {} if self.run is None else {"run": str(self.run)}


@dataclass(frozen=True, slots=True, kw_only=True)
class NoArguments:
    """The arguments of an action without arguments."""

    @classmethod
    def read(cls, fields: Fields) -> "NoArguments":
        """Check that there are no JSON fields.

        Raises:
            InvalidInputError: There are some.
        """
        fields.only(())
        return cls()

    def to_dict(self) -> dict[str, Json]:
        """Return the JSON form."""
        return {}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request to one node.

    Attributes:
        caller: The sender (claim `iss`, its caller id).
        node: The receiver (claim `aud`).
        iat: When it was issued, seconds since 1970.
        exp: When it expires.
        jti: Its id, a UUID, accepted once.
        action: One of `fleet.trust.policy.REQUESTS`.
        args: The arguments of the action.
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
        """Return the receiver as the signer of the reply."""
        return SignerName(self.node)

    @classmethod
    def parse(cls, payload: bytes) -> "Request":
        """Read the request in verified bytes.

        Raises:
            InvalidInputError: A claim is missing, unknown, or of the wrong type.
        """
        fields = Fields.parse(payload, where="request", limit=MAX_REQUEST)
        fields.schema(SCHEMA)
        fields.only(_CLAIMS)
        action = fields.parsed("action", _action)
        return cls(
            caller=fields.parsed("iss", SignerName.parse_caller),
            node=fields.parsed("aud", NodeName.parse),
            iat=fields.integer("iat", minimum=0),
            exp=fields.integer("exp", minimum=0),
            jti=fields.parsed("jti", parse_uuid),
            action=action,
            args=_ARGUMENTS.get(action, NoArguments).read(fields.inner("args")),
        )

    def to_dict(self) -> dict[str, Json]:
        """Return the claims."""
        return {
            "schema": SCHEMA,
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
    """Return why a request is not from its signer or not for this node; empty if it is both.

    Args:
        request: The request in the verified bytes.
        signer: The signer of the bytes.
        me: The node.
    """
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

    Args:
        request: A request from its signer to this node.
        now: The node's clock, seconds since 1970.
        policy: The node's policy; `None` without one.
    """
    problem = lifetime_problem(iat=request.iat, exp=request.exp, now=now)
    if problem:
        return problem
    for right in _rights(request):
        decision = decide(policy, request.caller.caller, right)
        if not decision.allowed:
            return decision.reason
    return ""
