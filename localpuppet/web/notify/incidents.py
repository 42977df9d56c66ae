"""Incidents: when something that is wrong in the fleet becomes one, and when it is over.

    seen -> pending -> (for) -> open -> gone -> (clear) -> closed

- An incident is of a cause and a release, not of a node: it opens once and closes once, whatever
  nodes come and go meanwhile.
- While the fleet cannot be seen, that is the one incident, and all others stay as they are. Times
  of `for` and `clear` then start again: what was not seen has not lasted.
- A time that is in the future, because the clock was set back, counts as now.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum

from localpuppet.base.formats.converter import JsonRecord
from localpuppet.base.value import Value

# Seconds for which a closed incident is kept, for channels that take states and not events.
KEPT = 3600.0
DIGITS = 16


class Severity(StrEnum):
    """How urgent an incident is, in rising order."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def place(self) -> int:
        """Return its place in that order."""
        return [*Severity].index(self)


class IncidentKind(StrEnum):
    """What an incident is about."""

    BUS = "bus"
    FAILED = "failed"
    LATE = "late"
    UNRESPONSIVE = "unresponsive"
    NOT_TRUSTED = "not_trusted"
    WRONG_RELEASE = "wrong_release"
    ROLLOUT = "rollout"
    EXPIRY = "expiry"
    DRIFT = "drift"

    @property
    def severity(self) -> Severity:
        """Return how urgent incidents of the kind are."""
        if self is IncidentKind.DRIFT:
            return Severity.INFO
        warnings = (IncidentKind.LATE, IncidentKind.UNRESPONSIVE, IncidentKind.EXPIRY)
        return Severity.WARNING if self in warnings else Severity.CRITICAL


class Condition(JsonRecord):
    """Something that is wrong now.

    Attributes:
        key: Equal as long as it is the same: the kind, its cause and its release.
    """

    key: str
    kind: IncidentKind
    subject: str = ""
    release: str = ""
    detail: str = ""
    nodes: tuple[str, ...] = ()
    page: str = "/"

    @property
    def cause(self) -> str:
        """Return a name of the cause that no text of a node is in."""
        digest = hashlib.sha256(self.key.encode()).hexdigest()[:DIGITS]
        return self.kind.value if self.key == self.kind else f"{self.kind.value}-{digest}"


class Incident(JsonRecord):
    """A condition over time: pending until it is opened, gone while it is not seen."""

    condition: Condition
    seen_at: float
    opened_at: float | None = None
    gone_at: float | None = None
    closed_at: float | None = None

    @property
    def id(self) -> str:
        """Return the same id for all messages about this incident."""
        text = f"{self.condition.key}\0{self.opened_at}"
        return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]

    @property
    def is_open(self) -> bool:
        """Whether it has opened, and is not over."""
        return self.opened_at is not None and self.closed_at is None


class Timing(Value):
    """Seconds that a condition lasts before it opens, and is gone before it closes."""

    lasts: float
    gone: float


Incidents = Mapping[str, Incident]


def decide(
    known: Incidents, seen: Mapping[str, Condition], *, now: float, timing: Timing
) -> dict[str, Incident]:
    """Return the incidents after a look at the fleet, by key of the condition."""
    after: dict[str, Incident] = {}
    for key, condition in seen.items():
        before = known.get(key)
        if before is None or before.closed_at is not None:
            before = Incident(condition=condition, seen_at=now)
        incident = replace(
            before, condition=condition, seen_at=min(before.seen_at, now), gone_at=None
        )
        if incident.opened_at is None and now - incident.seen_at >= timing.lasts:
            incident = replace(incident, opened_at=now)
        after[key] = incident
    for key, incident in known.items():
        if key in after:
            continue
        if incident.closed_at is not None:
            if 0 <= now - incident.closed_at < KEPT:
                after[key] = incident
        elif incident.opened_at is not None:
            gone_at = now if incident.gone_at is None else min(incident.gone_at, now)
            closed_at = now if now - gone_at >= timing.gone else None
            after[key] = replace(incident, gone_at=gone_at, closed_at=closed_at)
    return after


def freeze(
    known: Incidents, blind: Condition, *, now: float, timing: Timing
) -> dict[str, Incident]:
    """Return the incidents while the fleet cannot be seen, which `blind` says."""
    frozen = {
        key: replace(incident, gone_at=None) if incident.closed_at is None else incident
        for key, incident in known.items()
        if incident.opened_at is not None and key != blind.key
    }
    own = {blind.key: known[blind.key]} if blind.key in known else {}
    return frozen | decide(own, {blind.key: blind}, now=now, timing=timing)
