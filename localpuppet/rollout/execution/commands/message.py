"""The message of a rollout command on the bus, and its binding to a state of the rollout.

- A command is for one epoch of one rollout, so it cannot be replayed after a resumption.
- It names the events that its sender knew, by their number and digest, so it does not apply to a
  rollout that took another course.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.choice import parse_choice
from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.names import RolloutId, SignerName, parse_uuid
from localpuppet.base.formats.text import parse_line
from localpuppet.base.formats.values import Json
from localpuppet.fleet.requests.lifetime import lifetime_problem
from localpuppet.fleet.requests.rollout import MAX_EPOCH
from localpuppet.rollout.execution.commands.command import RolloutCommand, SentCommand
from localpuppet.rollout.execution.event_forms import to_dict
from localpuppet.rollout.execution.events import Event

MAX_COMMAND = 4 * 1024  # bytes of the claims
MAX_MACHINE = 253  # characters
MAX_EVENTS = 10_000_000
SCHEMA = 1
_CLAIMS = ("iss", "aud", "iat", "exp", "jti", "owner", "rollout", "epoch", "events", "digest")
_CONTENT = ("schema", "command", "machine", "about")


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalExtent:
    """The part of a journal that a sender knew.

    Attributes:
        events: How many events from the first; 0 if the checkpoint had none.
        digest: Their digest, `sha256:` and hexadecimal digits.
    """

    events: int
    digest: str

    @classmethod
    def of(cls, events: Sequence[tuple[str, Event]]) -> "JournalExtent":
        """Return the sight of a sender who knows these events."""
        text = json.dumps([[at, to_dict(event)] for at, event in events], sort_keys=True)
        return cls(events=len(events), digest=f"sha256:{hashlib.sha256(text.encode()).hexdigest()}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedCommand:
    """A rollout command on the bus.

    Attributes:
        caller: The sender (claim `iss`, a caller id).
        receiver: The controller of the rollout (claim `aud`, a caller id).
        iat: When it was sent, seconds since 1970.
        exp: When it expires, seconds since 1970.
        owner: The caller of the rollout.
        machine: The name of the sender's machine.
        about: What it refers to, see `SentCommand`; empty for most commands.
    """

    caller: SignerName
    receiver: SignerName
    iat: int
    exp: int
    jti: str
    owner: SignerName
    rollout: RolloutId
    epoch: int
    sight: JournalExtent
    command: RolloutCommand
    machine: str
    about: str = ""

    @classmethod
    def parse(cls, payload: bytes) -> "SignedCommand":
        """Return the command in verified bytes.

        Raises:
            InvalidInputError: A claim is missing, unknown, or of the wrong type.
        """
        fields = Fields.parse(payload, where="command", limit=MAX_COMMAND)
        fields.schema(SCHEMA)
        fields.only((*_CLAIMS, *_CONTENT))
        return cls(
            caller=fields.parsed("iss", SignerName.parse_caller),
            receiver=fields.parsed("aud", SignerName.parse_caller),
            iat=fields.integer("iat", minimum=0),
            exp=fields.integer("exp", minimum=0),
            jti=fields.parsed("jti", parse_uuid),
            owner=fields.parsed("owner", SignerName.parse_caller),
            rollout=fields.parsed("rollout", RolloutId.parse),
            epoch=fields.integer("epoch", minimum=1, maximum=MAX_EPOCH),
            sight=JournalExtent(
                events=fields.integer("events", minimum=0, maximum=MAX_EVENTS),
                digest=fields.parsed("digest", partial(parse_line, what="digest")),
            ),
            command=fields.parsed("command", _command),
            machine=fields.parsed("machine", parse_machine),
            about=fields.parsed("about", partial(parse_line, what="about"))
            if "about" in fields
            else "",
        )

    def to_payload(self) -> bytes:
        """Return the bytes to sign."""
        claims: dict[str, Json] = {
            "schema": SCHEMA,
            "iss": self.caller.caller,
            "aud": self.receiver.caller,
            "iat": self.iat,
            "exp": self.exp,
            "jti": self.jti,
            "owner": self.owner.caller,
            "rollout": str(self.rollout),
            "epoch": self.epoch,
            "events": self.sight.events,
            "digest": self.sight.digest,
            "command": str(self.command),
            "machine": self.machine,
            **({"about": self.about} if self.about else {}),
        }
        return json.dumps(claims, separators=(",", ":")).encode()

    @property
    def sent_command(self) -> SentCommand:
        """The command and its sender."""
        return SentCommand(
            command=self.command, caller=self.caller.caller, machine=self.machine, about=self.about
        )


def parse_machine(text: str) -> str:
    """Parse the name of a machine.

    Raises:
        InvalidInputError: The text is not one line, or is too long.
    """
    if len(text) > MAX_MACHINE:
        raise InvalidInputError(f"is longer than {MAX_MACHINE} characters", where="machine")
    return parse_line(text, what="machine")


def _command(text: str) -> RolloutCommand:
    update = "update localpuppet on the machine that controls the rollout"
    return parse_choice(RolloutCommand, text, what="a command that this version knows", hint=update)


def stale(
    spoken: SignedCommand, *, now: int, epoch: int, events: Sequence[tuple[str, Event]]
) -> str:
    """Return why a command does not apply to a rollout as it is now, one line; empty if it does."""
    if problem := lifetime_problem(iat=spoken.iat, exp=spoken.exp, now=now):
        return problem
    if spoken.epoch != epoch:
        return f"was resumed: the command is for epoch {spoken.epoch}, this is {epoch}"
    known = events[: spoken.sight.events]
    if JournalExtent.of(known) != spoken.sight:
        return "continued in another way than the sender knows"
    return ""
