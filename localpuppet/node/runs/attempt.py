"""An attempt: an apply that was refused before a record of it was opened.

Owns: what is kept of an attempt, and the class of its refusal, by which monitoring tells one kind
from another. An attempt holds no values of inputs: where it came from, what was asked for, and the
one line that its user saw.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from localpuppet.base.errors import (
    BusyError,
    EncError,
    IntegrityError,
    InvalidInputError,
    OnHoldError,
    PuppetMissingError,
    StateError,
    UnavailableError,
)
from localpuppet.base.formats.times import parse_time

SCHEMA = 1


class Refusal(StrEnum):
    """Why an apply was refused, as a class."""

    INVALID_INPUT = "invalid_input"
    INTEGRITY = "integrity"
    UNAVAILABLE = "unavailable"
    BUSY = "busy"
    ON_HOLD = "on_hold"
    ENC = "enc"
    PUPPET_MISSING = "puppet_missing"
    MACHINE = "machine"


_CLASSES: Mapping[type[Exception], Refusal] = {
    InvalidInputError: Refusal.INVALID_INPUT,
    IntegrityError: Refusal.INTEGRITY,
    UnavailableError: Refusal.UNAVAILABLE,
    BusyError: Refusal.BUSY,
    OnHoldError: Refusal.ON_HOLD,
    EncError: Refusal.ENC,
    PuppetMissingError: Refusal.PUPPET_MISSING,
    StateError: Refusal.MACHINE,
    OSError: Refusal.MACHINE,
}


def refusal(error: Exception) -> Refusal:
    """Return the class of the refusal that an error stands for."""
    for kind, found in _CLASSES.items():
        if isinstance(error, kind):
            return found
    return Refusal.MACHINE


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An apply that was refused; the same refusal again counts up.

    Attributes:
        at: When it was refused last, ISO 8601, UTC.
        since: When it was refused so for the first time without another attempt between.
        times: How often.
        refusal: The class of the refusal.
        reason: The line that the user saw.
        app: The release; empty where the input could not be read.
        input: Where the input came from (a path, `-`, a URL).
        user: Who asked.
        cause: What led to it.
        noop: Whether nothing was to be changed.
    """

    at: str
    since: str
    times: int
    refusal: Refusal
    reason: str
    app: str
    input: str
    user: str
    cause: str
    noop: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "Attempt":
        """Return the attempt.

        Raises:
            StateError: It is not one that this version wrote.
        """
        fields = {key: value for key, value in raw.items() if key != "schema"}
        try:
            if raw["schema"] != SCHEMA:
                raise ValueError(f"schema {raw['schema']!r}")
            attempt = cls(**{**fields, "refusal": Refusal(fields["refusal"])})
            texts = (attempt.reason, attempt.app, attempt.input, attempt.user, attempt.cause)
            sound = all(isinstance(text, str) for text in texts)
            if not sound or type(attempt.times) is not int or type(attempt.noop) is not bool:
                raise ValueError("a field has the wrong type")
            parse_time(attempt.at)
            parse_time(attempt.since)
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"is damaged: {error}") from error
        return attempt

    def repeats(self, other: "Attempt") -> bool:
        """Return whether this is the same refusal as another: all is equal but times and count."""
        return (self.refusal, self.reason, self.app, self.input, self.user, self.noop) == (
            other.refusal,
            other.reason,
            other.app,
            other.input,
            other.user,
            other.noop,
        )
