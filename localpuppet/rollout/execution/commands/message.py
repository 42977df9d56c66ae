"""The message of a rollout command on the bus, and its binding to a state of the rollout.

- A command is for one epoch of one rollout, so it cannot be replayed after a resumption.
- It names the events that its sender knew, by their number and digest, so it does not apply to a
  rollout that took another course.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.choice import parse_choice
from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.json_form import JsonForm, integer, parsed
from localpuppet.base.formats.names import RolloutId, SignerName, parse_uuid
from localpuppet.base.formats.text import parse_line
from localpuppet.fleet.requests.lifetime import lifetime_problem, parsed_caller
from localpuppet.fleet.requests.rollout import MAX_EPOCH
from localpuppet.rollout.execution.commands.command import RolloutCommand, SentCommand
from localpuppet.rollout.execution.events import Event, to_dict

MAX_COMMAND = 4 * 1024  # bytes of the claims
MAX_MACHINE = 253  # characters
MAX_EVENTS = 10_000_000
SCHEMA = 1


def digest_of(events: Sequence[tuple[str, Event]]) -> str:
    """Return the digest of events in a journal: `sha256:` and hexadecimal digits."""
    text = json.dumps([[at, to_dict(event)] for at, event in events], sort_keys=True)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedCommand(JsonForm):
    """A rollout command on the bus.

    Attributes:
        caller: The sender (claim `iss`, a caller id).
        receiver: The controller of the rollout (claim `aud`, a caller id).
        iat: When it was sent, seconds since 1970.
        exp: When it expires, seconds since 1970.
        owner: The caller of the rollout.
        events: How many events from the first the sender knew; 0 if the checkpoint had none.
        digest: Their digest, see `digest_of`.
        machine: The name of the sender's machine.
        about: What it refers to, see `SentCommand`; empty for most commands.
    """

    SCHEMA: ClassVar = SCHEMA
    caller: SignerName = field(metadata=parsed_caller("iss"))
    receiver: SignerName = field(metadata=parsed_caller("aud"))
    iat: int = field(metadata=integer(minimum=0))
    exp: int = field(metadata=integer(minimum=0))
    jti: str = field(metadata=parsed(parse_uuid))
    owner: SignerName = field(metadata=parsed_caller("owner"))
    rollout: RolloutId = field(metadata=parsed(RolloutId.parse))
    epoch: int = field(metadata=integer(minimum=1, maximum=MAX_EPOCH))
    events: int = field(metadata=integer(minimum=0, maximum=MAX_EVENTS))
    digest: str = field(metadata=parsed(partial(parse_line, what="digest")))
    command: RolloutCommand = field(metadata=parsed(_command))
    machine: str = field(metadata=parsed(parse_machine))
    about: str = field(default="", metadata=parsed(partial(parse_line, what="about")))

    @classmethod
    def parse(cls, payload: bytes) -> "SignedCommand":
        """Return the command in verified bytes.

        Raises:
            InvalidInputError: A claim is missing, unknown, or of the wrong type.
        """
        return cls.read(Fields.parse(payload, where="command", limit=MAX_COMMAND))

    def to_payload(self) -> bytes:
        """Return the bytes to sign."""
        return json.dumps(self.to_dict(), separators=(",", ":")).encode()

    @property
    def sent_command(self) -> SentCommand:
        """The command and its sender."""
        return SentCommand(
            command=self.command, caller=self.caller.caller, machine=self.machine, about=self.about
        )


def stale(
    spoken: SignedCommand, *, now: int, epoch: int, events: Sequence[tuple[str, Event]]
) -> str:
    """Return why a command does not apply to a rollout as it is now, one line; empty if it does."""
    if problem := lifetime_problem(iat=spoken.iat, exp=spoken.exp, now=now):
        return problem
    if spoken.epoch != epoch:
        return f"was resumed: the command is for epoch {spoken.epoch}, this is {epoch}"
    known = events[: spoken.events]
    if (len(known), digest_of(known)) != (spoken.events, spoken.digest):
        return "continued in another way than the sender knows"
    return ""
