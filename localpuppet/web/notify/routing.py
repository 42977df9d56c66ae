"""`notify:` in `localpuppet.yaml`: the channels, and which incidents each receives."""

import ipaddress
from collections.abc import Mapping, Set
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.converter import JsonRecord, Key
from localpuppet.base.formats.names import check_known
from localpuppet.base.value import Value
from localpuppet.node.settings import Seconds, SettingsFile
from localpuppet.web.notify.incidents import Condition, IncidentKind, Severity, Timing


class ChannelType(StrEnum):
    """The protocol of a channel."""

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
    """One channel.

    Attributes:
        secret_file: The private file with the key of a webhook's signatures.
        severity: The lowest severity that it receives.
        repository: Its name on the git host, OWNER/NAME; on GitLab also a number.
    """

    type: ChannelType
    url_file: Path | None = None
    secret_file: Path | None = None
    token_file: Path | None = None
    password_file: Path | None = None
    ca: Path | None = None
    query: str = ""
    kinds: frozenset[IncidentKind] = frozenset()
    severity: Severity = Severity.INFO
    server: str = ""
    sender: Annotated[str, Key("from")] = ""
    to: tuple[str, ...] = ()
    user: str = ""
    source: str = ""
    repository: str = ""
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
    """Return the section `notify:`.

    Raises:
        InvalidInputError: A channel lacks a key of its type, or has another type's.
    """
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
