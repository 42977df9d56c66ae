"""What a rollout may do: its options, the release to deliver, and the approved changes.

- The digest covers the rollout's id, its groups, its tags, and each node's release and changes.
  Two rollouts never have the same digest.
- `compare` compares a node's later changes with an approval.
- Two changes are the same if their marks are equal.
- The approved changes or a subset of them pass.
- A release that was not approved never passes, whatever it changes.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.converter import JsonRecord
from localpuppet.base.formats.names import NodeName, ReleasePath, RolloutId
from localpuppet.base.formats.strict_json import canonical
from localpuppet.base.formats.times import show_duration
from localpuppet.base.value import Value
from localpuppet.fleet.bus.bus_limits import MAX_HOLD
from localpuppet.fleet.requests.request import Deploy, DeployAction, RolloutReference
from localpuppet.node.enc.document import Classes
from localpuppet.node.puppet.changes import PredictedChanges, PropertyChange, parse_salt
from localpuppet.rollout.site import Check, shown

_AMOUNT = re.compile(r"([0-9]{1,6})(%?)\Z")


class Amount(Value):
    """A number of nodes, absolute or as a percentage."""

    number: int
    percent: bool

    @classmethod
    def parse(cls, text: str, *, what: str, minimum: int = 1) -> "Amount":
        """Parse an amount of at least `minimum` nodes, and at most 100%."""
        match = _AMOUNT.match(text)
        if not match:
            raise InvalidInputError(
                f"{text[:40]!r} is not a number of nodes", where=what, hint="write 3 or 25%"
            )
        amount = cls(number=int(match[1]), percent=bool(match[2]))
        if amount.number < minimum or (amount.percent and amount.number > 100):
            most = " to 100%" if amount.percent else " or more"
            raise InvalidInputError(f"is {text}, must be {minimum}{most}", where=what)
        return amount

    def of(self, total: int) -> int:
        """Return the number of nodes out of `total`; a percentage is rounded down."""
        return total * self.number // 100 if self.percent else self.number

    def __str__(self) -> str:
        return f"{self.number}{'%' * self.percent}"


class Delivery(Value):
    """What each node takes before it runs: layers and classes replace those of its input."""

    release: ReleasePath
    layers: tuple[str, ...] = ()
    classes: Classes = field(default_factory=dict)
    allow_older: bool = False

    def __post_init__(self) -> None:
        """Reject a delivery that no node would take, before the rollout begins."""
        self.ask(DeployAction.STAGE, serial=1, rollout=None)

    @property
    def rights(self) -> tuple[str, ...]:
        """The rights that each node's policy must grant."""
        return self.ask(DeployAction.STAGE, serial=1, rollout=None).rights

    def ask(self, deed: DeployAction, *, serial: int, rollout: RolloutReference | None) -> Deploy:
        """Return the request for a node; reject one that no node would take."""
        return Deploy(
            release=self.release,
            action=deed,
            serial=serial,
            layers=self.layers,
            classes=self.classes,
            allow_older=self.allow_older,
            rollout=rollout,
        )


NONE = Amount(number=0, percent=False)
TIMEOUT = 3600.0
PAUSE_AT_MOST = 3600.0


class OnFailure(StrEnum):
    """What a rollout does after more failures than allowed."""

    STOP = "stop"
    PAUSE = "pause"
    ROLLBACK = "rollback"  # stop, then roll the nodes back to their previous release


class PauseAfter(StrEnum):
    """After which nodes a rollout waits for an operator."""

    CANARIES = "canaries"
    GROUPS = "groups"


class RolloutOptions(Value):
    # Number of nodes of each group that run before the others of the group; if one fails, the
    # rollout ends. 0 for none.
    canary: int = 0
    # Number of nodes of a group that run together; the next batch starts when all have ended.
    # `None` for the whole group.
    batch: Amount | None = None
    # Number of nodes of a group that run at a time; the next node starts when one has ended. `None`
    # for no limit; excludes `batch`.
    window: int | None = None
    # How many of the selected nodes may fail without ending the rollout.
    max_failures: Amount = NONE
    noop: bool = False
    tags: tuple[str, ...] = ()
    timeout: float = TIMEOUT
    skip_unready: bool = False
    checks: tuple[Check, ...] = ()
    # What happens after more failures than allowed, or a failed canary.
    on_failure: OnFailure = OnFailure.STOP
    # After which nodes the rollout waits for an operator, even without failures.
    pause: tuple[PauseAfter, ...] = ()
    pause_at_most: float = PAUSE_AT_MOST  # seconds after which a paused rollout is stopped
    # Seconds for which failed nodes stay on hold after the end; `None` to release them as well.
    investigate: float | None = None
    # A fact: nodes with different values of it do not run at the same time.
    one_at_a_time_by: str | None = None
    until: datetime | None = None
    delivery: Delivery | None = None

    def __post_init__(self) -> None:
        """Reject options that contradict each other."""
        if self.batch is not None and self.window is not None:
            raise InvalidInputError("--batch and --window exclude each other")
        if self.batch is not None and self.batch.number < 1:
            raise InvalidInputError("is 0, must be 1 or more", where="--batch")
        if self.noop and self.checks:
            raise InvalidInputError(
                "--noop and --check exclude each other: a check needs a changed node"
            )
        if self.delivery is not None and (self.noop or self.tags):
            raise InvalidInputError(
                "--release excludes --noop and --tags: nodes run a whole release"
            )
        if self.delivery is None and self.on_failure is OnFailure.ROLLBACK:
            raise InvalidInputError("--on-failure rollback requires --release")
        if self.investigate is not None and self.investigate > MAX_HOLD:
            raise InvalidInputError(
                f"is more than {show_duration(MAX_HOLD)}, the longest hold", where="--investigate"
            )


_ON_FAILURE = {
    OnFailure.PAUSE: "pauses after too many failures",
    OnFailure.ROLLBACK: "rolls the release back after too many failures",
}
_PAUSE = {
    PauseAfter.CANARIES: "pauses after the canaries of each group",
    PauseAfter.GROUPS: "pauses before each group but the first",
}


def describe_options(options: RolloutOptions) -> tuple[str, ...]:
    """Return a phrase for each option that differs from the default, without the release."""
    return (*_pace(options), *_failures(options))


def _pace(options: RolloutOptions) -> Iterator[str]:
    if options.canary:
        noun = "canary" if options.canary == 1 else "canaries"
        yield f"{options.canary} {noun} in each group"
    if options.batch is not None:
        yield f"batches of {_nodes(options.batch)}"
    if options.window is not None:
        yield f"at most {_count(options.window)} at a time"
    if options.one_at_a_time_by is not None:
        yield f"one value of {options.one_at_a_time_by} at a time"
    if options.until is not None:
        yield f"starts no run that would end after {options.until:%Y-%m-%d %H:%M UTC}"


def _failures(options: RolloutOptions) -> Iterator[str]:
    if options.max_failures != NONE:
        yield f"{_nodes(options.max_failures)} may fail"
    if options.on_failure in _ON_FAILURE:
        yield _ON_FAILURE[options.on_failure]
    yield from (_PAUSE[point] for point in options.pause)
    if options.pause_at_most != PAUSE_AT_MOST:
        yield f"stops after a pause of {show_duration(options.pause_at_most)}"
    if options.investigate is not None:
        yield f"keeps failed nodes on hold for {show_duration(options.investigate)}"
    if options.skip_unready:
        yield "skips nodes that are not ready"
    yield from (f"check after each run: {shown(check)}" for check in options.checks)
    if options.noop:
        yield "changes nothing"
    if options.tags:
        yield f"only resources tagged {', '.join(options.tags)}"
    if options.timeout != TIMEOUT:
        yield f"waits at most {show_duration(options.timeout)} for each run"
    if options.delivery is not None and options.delivery.allow_older:
        yield "accepts a release that is older than that of a node"


def _nodes(amount: Amount) -> str:
    return f"{amount} of the nodes" if amount.percent else _count(amount.number)


def _count(number: int) -> str:
    return "1 node" if number == 1 else f"{number} nodes"


# Changes of all nodes of a rollout together; a person has to review them.
MAX_ALL = 20_000


class Approval(Value):
    """The approved changes of a rollout, by the digest that the operator approved."""

    rollout: RolloutId
    digest: str
    salt: str
    nodes: Mapping[NodeName, PredictedChanges]

    def __post_init__(self) -> None:
        parse_salt(self.salt)


def digest_of(
    rollout: RolloutId,
    *,
    groups: Sequence[Sequence[NodeName]],
    tags: Sequence[str],
    nodes: Mapping[NodeName, PredictedChanges],
) -> str:
    """Return the digest of the reported changes, 64 hexadecimal digits."""
    content = {
        "rollout": rollout,
        "groups": [list(group) for group in groups],
        "tags": list(tags),
        "nodes": {node: predicted.to_dict() for node, predicted in nodes.items()},
    }
    return hashlib.sha256(canonical(content)).hexdigest()


DIGITS = 16  # of a difference's digest: an operator compares it by eye


class UnapprovedChange(JsonRecord):
    """What a node would do that was not approved.

    `approved` is the release, if it differs. `other_values` of the others were approved with other
    values.
    """

    release: str
    approved: str
    others: tuple[PropertyChange, ...]
    other_values: int = 0

    def __bool__(self) -> bool:
        return bool(self.approved or self.others)

    @property
    def digest(self) -> str:
        """The digest that an operator names to approve the difference, hexadecimal."""
        return hashlib.sha256(canonical(self.to_dict())).hexdigest()[:DIGITS]

    @property
    def reason(self) -> str:
        """The difference in a few words, for messages."""
        parts = [f"would run {self.release}, and {self.approved} was approved"]
        changes = "1 change" if len(self.others) == 1 else f"{len(self.others)} changes"
        values = f", {self.other_values} of them to other values" if self.other_values else ""
        verb = "was" if len(self.others) == 1 else "were"
        text = f"would make {changes} that {verb} not approved{values}"
        return "; ".join([*(parts if self.approved else ()), *([text] if self.others else ())])


def compare(approved: PredictedChanges | None, predicted: PredictedChanges) -> UnapprovedChange:
    """Return what a node would do beyond the approval; false if there is nothing."""
    before = () if approved is None else approved.changes
    marks = {change.mark for change in before}
    names = {_property(change) for change in before}
    others = tuple(change for change in predicted.changes if change.mark not in marks)
    release = "nothing" if approved is None else approved.release
    return UnapprovedChange(
        release=predicted.release,
        approved="" if release == predicted.release else release,
        others=others,
        other_values=sum(_property(change) in names for change in others),
    )


def extend(approved: PredictedChanges | None, difference: UnapprovedChange) -> PredictedChanges:
    """Return the approved changes of a node, extended by a difference."""
    changes = (*(() if approved is None else approved.changes), *difference.others)
    return PredictedChanges(
        release=difference.release, total=len(changes), changes=tuple(sorted(changes))
    )


def _property(change: PropertyChange) -> tuple[str, str, str]:
    return change.type, change.title, change.property


_LOCAL = re.compile(
    r"(?:([0-9]{4}-[0-9]{2}-[0-9]{2})[ T])?([0-9]{1,2}:[0-9]{2}) +([A-Za-z0-9_+/-]{1,64})\Z"
)
_HINT = "write it with a zone: 2026-11-22T06:00+01:00, or '06:00 Europe/Berlin'"


def parse_until(text: str, *, now: datetime, where: str) -> datetime:
    """Parse a deadline that is not in the past and return it in UTC.

        2026-11-22T06:00+01:00
        2026-11-22 06:00 Europe/Berlin
        06:00 Europe/Berlin               the next time that clocks there show it

    If clocks show the time twice because they are set back, the earlier one counts; if they skip
    it, it is an error.
    """
    end = _parse(text, now=now, where=where)
    if end <= now:
        raise InvalidInputError("is in the past", where=where)
    return end


def _parse(text: str, *, now: datetime, where: str) -> datetime:
    local = _LOCAL.match(text)
    if local is None:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            raise InvalidInputError("is not a time", where=where, hint=_HINT) from error
        if moment.tzinfo is None:
            raise InvalidInputError("has no time zone", where=where, hint=_HINT)
        return moment.astimezone(UTC)
    date, time, name = local.groups()
    try:
        zone = ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidInputError(
            f"the zone {name!r} is unknown on this machine", where=where, hint=_HINT
        ) from error
    today = now.astimezone(zone).date().isoformat()
    end = _moment(date or today, time, zone, where)
    if date is None and end <= now:
        tomorrow = now.astimezone(zone).date() + timedelta(days=1)
        end = _moment(tomorrow.isoformat(), time, zone, where)
    return end


def _moment(date: str, time: str, zone: ZoneInfo, where: str) -> datetime:
    try:
        wall = datetime.fromisoformat(f"{date}T{time:0>5}").replace(tzinfo=zone)
    except ValueError as error:
        raise InvalidInputError("is not a time", where=where, hint=_HINT) from error
    moment = wall.astimezone(UTC)
    if moment.astimezone(zone).replace(tzinfo=None) != wall.replace(tzinfo=None):
        raise InvalidInputError(
            f"{date} {time} does not exist in {zone.key}: clocks are set forward then", where=where
        )
    return moment
