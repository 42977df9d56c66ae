"""A hold: a reason, an owner and a deadline; while it is in force, the node does not run."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import RolloutId, SignerName
from localpuppet.base.formats.schema_number import damage_errors
from localpuppet.base.formats.text import parse_line
from localpuppet.base.formats.times import parse_time
from localpuppet.base.formats.values import check_field_types

_ROLLOUT = "/rollout/"
# How far this node's clock may be behind the one of the process that made a hold.
CLOCK_TOLERANCE = timedelta(minutes=1)
SHORT = timedelta(minutes=10)  # times of a shorter hold are shown with seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """One reason why a node does not run.

    Attributes:
        owner: The owner, who has at most one hold on a node. A rollout owns its hold as
            `CALLER/rollout/ID`.
        reason: One printable line.
        since: ISO 8601, UTC; empty if unknown, as with `puppet agent --disable`.
        until: When the hold expires; `None` for never.
    """

    owner: str
    reason: str
    since: str
    until: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "Hold":
        """Return the hold."""
        with damage_errors():
            hold = cls(**raw)
            check_field_types(hold)
            parse_line(hold.reason, what="reason")
            for text in (hold.since or None, hold.until):
                if text is not None:
                    parse_time(text)
        return hold

    @property
    def of_rollout(self) -> bool:
        """Whether a rollout owns the hold."""
        return _ROLLOUT in self.owner

    def active(self, now: datetime) -> bool:
        """Return whether the hold is in force at `now`."""
        return self.until is None or now < parse_time(self.until)

    def is_misdated(self, now: datetime) -> bool:
        """Return whether the hold's deadline is too late because the clock was ahead."""
        made = parse_time(self.since) if self.since else now
        return self.until is not None and made > now + CLOCK_TOLERANCE

    def shown(self, now: datetime) -> str:
        """Return one line for people, with a note if a wrong clock set the deadline."""
        wrong = "; the clock was wrong when this hold was created, so its deadline is wrong too"
        return f"{self}{wrong if self.is_misdated(now) else ''}"

    def __str__(self) -> str:
        """Return one line for people."""
        begin, end = (parse_time(text) if text else None for text in (self.since, self.until))
        short = begin is not None and end is not None and end - begin < SHORT
        form = "%Y-%m-%d %H:%M:%S UTC" if short else "%Y-%m-%d %H:%M UTC"
        since = f" since {begin.strftime(form)}" if begin else ""
        deadline = f" until {end.strftime(form)}" if end else ""
        return f"{self.reason} (held by {self.owner}{since}{deadline})"


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldStatus:
    """The holds in force on a node, summarised.

    Attributes:
        reason: The oldest hold, in one line; a hold of a person comes before those of rollouts.
        rollouts: The owners of the holds of rollouts.
        alone: Whether only rollouts hold the node: a step of the rollout may run, and other
            requests wait until the rollout is over, whatever their ttl.
    """

    reason: str
    rollouts: frozenset[str] = frozenset()
    alone: bool = False

    @classmethod
    def by(cls, holds: Iterable[Hold]) -> "HoldStatus | None":
        """Return the summary of holds in force, oldest first; `None` without any."""
        listed = list(holds)
        if not listed:
            return None
        others = [hold for hold in listed if not hold.of_rollout]
        owners = frozenset(hold.owner for hold in listed if hold.of_rollout)
        return cls(
            reason=str((others or listed)[0]),
            rollouts=owners,
            alone=not others and len(owners) == 1,
        )


def rollout_owner(caller: str, rollout: str) -> str:
    """Return the owner of a rollout's holds.

    Args:
        caller: The caller id of the rollout's operator, without `/`.
        rollout: The rollout's id.
    """
    return f"{caller}{_ROLLOUT}{rollout}"


def rollout_of(owner: str) -> tuple[str, RolloutId] | None:
    """Return the caller and the id in the owner of a rollout's holds; `None` for other owners."""
    caller, between, rollout = owner.partition(_ROLLOUT)
    if not between:
        return None
    try:
        return SignerName.parse_caller(caller).caller, RolloutId.parse(rollout)
    except InvalidInputError:
        return None


def active(holds: Iterable[Hold], now: datetime) -> list[Hold]:
    """Return the holds that are in force at `now`, oldest first."""
    return sorted((hold for hold in holds if hold.active(now)), key=lambda hold: hold.since)
