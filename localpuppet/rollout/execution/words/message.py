"""A word that comes over the bus: its claims, and how it is bound to what its speaker knew.

Owns: the value, its form, and why one is not for a rollout as it is now. Refuses to know:
signatures, policies, the bus.

Invariants: a word is for one rollout in one epoch, so that nothing that was said before is heard
again when the rollout was resumed; it names how much of the journal its speaker knew by the digest
of that, so that it is not taken for a rollout that went another way.
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
from localpuppet.rollout.execution.event_forms import to_dict
from localpuppet.rollout.execution.events import Event
from localpuppet.rollout.execution.words.word import Said, Word

MAX_WORD = 4 * 1024  # bytes of the claims
MAX_MACHINE = 253  # characters
MAX_EVENTS = 10_000_000
_CLAIMS = ("iss", "aud", "iat", "exp", "jti", "owner", "rollout", "epoch", "events", "digest")
_SAID = ("word", "machine", "about")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """How much of a journal somebody knew.

    Attributes:
        events: How many of its events, from the first; 0 where the bus did not have them.
        digest: Of these, `sha256:` and hexadecimal digits.
    """

    events: int
    digest: str

    @classmethod
    def of(cls, events: Sequence[tuple[str, Event]]) -> "Sight":
        """Return what somebody knows who has seen these events, each with its time."""
        text = json.dumps([[at, to_dict(event)] for at, event in events], sort_keys=True)
        return cls(events=len(events), digest=f"sha256:{hashlib.sha256(text.encode()).hexdigest()}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenWord:
    """A word on its way.

    Attributes:
        caller: Who speaks (claim `iss`, its caller id).
        receiver: Who goes on with the rollout (claim `aud`, its caller id).
        iat: When it was said, seconds since 1970.
        exp: When it expires.
        jti: Its id, a UUID; heard once.
        owner: Whose rollout it is.
        rollout: Which.
        epoch: Which epoch of it.
        sight: What the speaker knew.
        word: The word.
        machine: Where it was said.
        about: What it is about, see `Said`; empty for most words.
    """

    caller: SignerName
    receiver: SignerName
    iat: int
    exp: int
    jti: str
    owner: SignerName
    rollout: RolloutId
    epoch: int
    sight: Sight
    word: Word
    machine: str
    about: str = ""

    @classmethod
    def parse(cls, payload: bytes) -> "SpokenWord":
        """Return the word in verified bytes.

        Raises:
            InvalidInputError: A claim is missing, unknown, or not of its type.
        """
        fields = Fields.parse(payload, where="word", limit=MAX_WORD)
        fields.only((*_CLAIMS, *_SAID))
        return cls(
            caller=fields.parsed("iss", SignerName.parse_caller),
            receiver=fields.parsed("aud", SignerName.parse_caller),
            iat=fields.integer("iat", minimum=0),
            exp=fields.integer("exp", minimum=0),
            jti=fields.parsed("jti", parse_uuid),
            owner=fields.parsed("owner", SignerName.parse_caller),
            rollout=fields.parsed("rollout", RolloutId.parse),
            epoch=fields.integer("epoch", minimum=1, maximum=MAX_EPOCH),
            sight=Sight(
                events=fields.integer("events", minimum=0, maximum=MAX_EVENTS),
                digest=fields.parsed("digest", partial(parse_line, what="digest")),
            ),
            word=fields.parsed("word", _word),
            machine=fields.parsed("machine", parse_machine),
            about=fields.parsed("about", partial(parse_line, what="about"))
            if "about" in fields
            else "",
        )

    def to_payload(self) -> bytes:
        """Return the bytes that are signed."""
        claims: dict[str, Json] = {
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
            "word": str(self.word),
            "machine": self.machine,
            **({"about": self.about} if self.about else {}),
        }
        return json.dumps(claims, separators=(",", ":")).encode()

    @property
    def said(self) -> Said:
        """The word, and who said it."""
        return Said(
            word=self.word, caller=self.caller.caller, machine=self.machine, about=self.about
        )


def parse_machine(text: str) -> str:
    """Return what a machine calls itself.

    Raises:
        InvalidInputError: The text is not one line, or too long.
    """
    if len(text) > MAX_MACHINE:
        raise InvalidInputError(f"is longer than {MAX_MACHINE} characters", where="machine")
    return parse_line(text, what="machine")


def _word(text: str) -> Word:
    update = "update localpuppet where the rollout goes on"
    return parse_choice(Word, text, what="a word that this version knows", hint=update)


def stale(spoken: SpokenWord, *, now: int, epoch: int, events: Sequence[tuple[str, Event]]) -> str:
    """Return why a word is not for a rollout as it is now, one line; empty where it is.

    Args:
        spoken: What its signer said to us of this rollout.
        now: Our clock, seconds since 1970.
        epoch: The epoch that goes on.
        events: The journal, the oldest first, each event with its time.
    """
    if problem := lifetime_problem(iat=spoken.iat, exp=spoken.exp, now=now):
        return problem
    if spoken.epoch != epoch:
        return f"was resumed: that word is for epoch {spoken.epoch}, this is {epoch}"
    known = events[: spoken.sight.events]
    if Sight.of(known) != spoken.sight:
        return "went another way than whoever speaks knows"
    return ""
