"""An attempt: an apply that was refused before its record was opened.

An attempt holds no values of inputs, only the source of the input, the request, and the one line
that the user saw. Monitoring tells attempts apart by the class of the refusal.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from localpuppet.base.errors import (
    BusyError,
    EncError,
    IntegrityError,
    InvalidInputError,
    OnHoldError,
    PuppetMissingError,
    UnavailableError,
)
from localpuppet.base.formats.schema_number import damage_errors, without_schema
from localpuppet.base.formats.times import parse_time
from localpuppet.base.formats.values import check_field_types

if TYPE_CHECKING:
    from localpuppet.node.puppet.fault import FailureCause

SCHEMA = 1
_SUBJECT = attrgetter("refusal", "reason", "release", "input", "user", "noop")


class RefusalKind(StrEnum):
    """Why an apply was refused, as a class."""

    INVALID_INPUT = "invalid_input"
    INTEGRITY = "integrity"
    UNAVAILABLE = "unavailable"
    BUSY = "busy"
    ON_HOLD = "on_hold"
    ENC = "enc"
    PUPPET_MISSING = "puppet_missing"
    MACHINE = "machine"


_CLASSES: Mapping[type[Exception], RefusalKind] = {
    InvalidInputError: RefusalKind.INVALID_INPUT,
    IntegrityError: RefusalKind.INTEGRITY,
    UnavailableError: RefusalKind.UNAVAILABLE,
    BusyError: RefusalKind.BUSY,
    OnHoldError: RefusalKind.ON_HOLD,
    EncError: RefusalKind.ENC,
    PuppetMissingError: RefusalKind.PUPPET_MISSING,
}
# Each class in words that may leave the node.
REFUSALS: Mapping[RefusalKind, str] = {
    RefusalKind.INVALID_INPUT: "invalid input",
    RefusalKind.INTEGRITY: "release not verified",
    RefusalKind.UNAVAILABLE: "source unreachable",
    RefusalKind.BUSY: "another run is on the node",
    RefusalKind.ON_HOLD: "the node is on hold",
    RefusalKind.ENC: "ENC failed",
    RefusalKind.PUPPET_MISSING: "Puppet is missing",
    RefusalKind.MACHINE: "the machine refused",
}


def refusal_cause(kind: RefusalKind, message: str) -> "FailureCause":
    """Return why Puppet was not started, in words that may leave the node."""
    from localpuppet.node.puppet.fault import FailureCause, normalized

    return FailureCause(error=f"{REFUSALS[kind]}: {normalized(message)}")


def refusal(error: Exception) -> RefusalKind:
    """Return the class of the refusal that an error means; `MACHINE` for any other error."""
    for kind, errors in _CLASSES.items():
        if isinstance(error, kind):
            return errors
    return RefusalKind.MACHINE


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An apply that was refused; a repeated refusal raises `times`.

    Attributes:
        at: When it was refused last, ISO 8601, UTC.
        since: When this series of equal refusals began, ISO 8601, UTC.
        times: How often in this series.
        refusal: The class of the refusal.
        reason: The line that the user saw.
        release: The release; empty where the input could not be read.
        input: Where the input came from (a path, `-`, a URL).
        user: The user who asked.
        cause: What led to it.
        noop: Whether noop was requested.
    """

    at: str
    since: str
    times: int
    refusal: RefusalKind
    reason: str
    release: str
    input: str
    user: str
    cause: str
    noop: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "Attempt":
        """Return the attempt."""
        fields = without_schema(raw, SCHEMA)
        with damage_errors():
            attempt = cls(**{**fields, "refusal": RefusalKind(fields["refusal"])})
            check_field_types(attempt)
            parse_time(attempt.at)
            parse_time(attempt.since)
        return attempt

    def repeats(self, other: "Attempt") -> bool:
        """Return whether all fields but the times and the count equal those of another attempt."""
        return _SUBJECT(self) == _SUBJECT(other)
