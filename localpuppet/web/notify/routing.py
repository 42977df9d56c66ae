"""Incidents, and `notify:` in `localpuppet.yaml`: the channels, and which incidents each receives.

    seen -> pending -> (for) -> open -> gone -> (clear) -> closed

- An incident is of a cause and a release, not of a node: it opens once and closes once, whatever
  nodes come and go meanwhile.
- While the fleet cannot be seen, that is the one incident, and all others stay as they are. Times
  of `for` and `clear` then start again: what was not seen has not lasted.
- A time that is in the future, because the clock was set back, counts as now.
"""

import hashlib
import ipaddress
from collections.abc import Mapping, Set
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.converter import JsonRecord, Key
from localpuppet.base.formats.names import check_known
from localpuppet.base.value import Value
from localpuppet.node.settings import Seconds, SettingsFile

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
    """Something that is wrong now."""

    key: str  # equal as long as it is the same: the kind, its cause and its release
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
    known: Incidents,
    seen: Mapping[str, Condition],
    *,
    now: float,
    timing: Timing,
    more: Set[str] = frozenset(),
) -> dict[str, Incident]:
    """Return the incidents after a look at the fleet, by key of the condition.

    `more` are keys of conditions that are too many to be seen, and not over.
    """
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
        elif incident.opened_at is not None and key in more:
            after[key] = replace(incident, gone_at=None)
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


class ChannelType(StrEnum):
    WEBHOOK = "webhook"
    SLACK = "slack"
    ALERTMANAGER = "alertmanager"
    MAIL = "mail"
    HEARTBEAT = "heartbeat"
    GITHUB = "github"
    GITLAB = "gitlab"
    GITEA = "gitea"

    @property
    def is_git_host(self) -> bool:
        """Whether it takes the statuses of commits."""
        return self in (ChannelType.GITHUB, ChannelType.GITLAB, ChannelType.GITEA)

    @property
    def takes_states(self) -> bool:
        """Whether it takes what is, again and again, and not what opens and closes."""
        return self.is_git_host or self in (ChannelType.ALERTMANAGER, ChannelType.HEARTBEAT)


_SELECTS = {"ca", "query", "kinds", "severity"}
_COMMITS = {"source", "repository", "token_file"}
# Type → the keys that it needs, and those that it may have.
_KEYS: Mapping[ChannelType, tuple[Set[str], Set[str]]] = {
    ChannelType.WEBHOOK: ({"url_file", "secret_file"}, _SELECTS),
    ChannelType.SLACK: ({"url_file"}, _SELECTS),
    ChannelType.ALERTMANAGER: ({"url_file"}, {*_SELECTS, "token_file"}),
    ChannelType.HEARTBEAT: ({"url_file"}, {"ca"}),
    ChannelType.MAIL: ({"server", "from", "to"}, {*_SELECTS, "user", "password_file"}),
    ChannelType.GITHUB: (_COMMITS, {"ca", "query", "api_url"}),
    ChannelType.GITLAB: (_COMMITS, {"ca", "query", "api_url"}),
    ChannelType.GITEA: ({*_COMMITS, "api_url"}, {"ca", "query"}),
}
_ALL_KEYS = frozenset[str]().union(*(needs | may for needs, may in _KEYS.values()))


class ChannelSettings(JsonRecord):
    type: ChannelType
    url_file: Path | None = None
    secret_file: Path | None = None  # the private file with the key of a webhook's signatures
    token_file: Path | None = None
    password_file: Path | None = None
    ca: Path | None = None
    query: str = ""
    kinds: frozenset[IncidentKind] = frozenset()
    severity: Severity = Severity.INFO  # the lowest severity that it receives
    server: str = ""
    sender: Annotated[str, Key("from")] = ""
    to: tuple[str, ...] = ()
    user: str = ""
    source: str = ""
    repository: str = ""  # its name on the git host, OWNER/NAME; on GitLab also a number
    api_url: str = ""


class NotifySettings(JsonRecord):
    """The channels and the timing of notifications.

    Something is wrong for `lasts` seconds before its incident opens, and is not for `gone` seconds
    before it closes.
    """

    fleet: str
    dashboard: str = ""
    lasts: Annotated[Seconds, Key("for")]
    gone: Annotated[Seconds, Key("clear")]
    channels: Mapping[str, ChannelSettings]

    @property
    def timing(self) -> Timing:
        """Return how long conditions last before incidents open and close."""
        return Timing(lasts=self.lasts, gone=self.gone)


def notify_settings(file: SettingsFile) -> NotifySettings:
    """Return the section `notify:`; each channel has the keys of its type, and no others."""
    settings = file.section(NotifySettings, "notify")
    for name, raw in file.full["notify"]["channels"].items():
        where = f"{file.path}: notify.channels.{name}"
        channel = settings.channels[name]
        needs, may = _KEYS[channel.type]
        for key in sorted(needs - raw.keys()):
            raise InvalidInputError(
                f"a channel of the type {channel.type} needs {key}", where=where
            )
        for key in sorted((_ALL_KEYS & raw.keys()) - needs - may):
            raise InvalidInputError(
                f"a channel of the type {channel.type} has no {key}", where=where
            )
        if bool(channel.user) != (channel.password_file is not None):
            raise InvalidInputError(
                "must have both user and password_file, or neither", where=where
            )
        if channel.type.is_git_host:
            problem = f"{channel.source!r} is not a source"
            check_known(channel.source, file.full["sources"], problem, where=f"{where}.source")
    return settings


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine by its name, which no server can change."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Route(Value):
    """A channel, and the nodes of its query."""

    name: str
    channel: ChannelSettings
    nodes: frozenset[str] | None = None

    def wants(self, condition: Condition) -> bool:
        """Return whether the channel receives a condition."""
        kind, channel = condition.kind, self.channel
        if channel.kinds and kind not in channel.kinds:
            return False
        if kind.severity.place < channel.severity.place:
            return False
        # An incident that is not about nodes concerns everybody.
        return not condition.nodes or bool(self.of_nodes(condition))

    def of_nodes(self, condition: Condition) -> tuple[str, ...]:
        """Return the nodes of a condition that the channel receives."""
        if self.nodes is None:
            return condition.nodes
        return tuple(node for node in condition.nodes if node in self.nodes)
