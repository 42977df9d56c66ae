"""The words of messages: one vocabulary for all channels, and the escapes of each.

A message has no values of resources: it has names, counts, and the failure cause, from which
`node.puppet.fault` has taken what differs between nodes. Names and causes come from nodes, so each
channel shows them as text that is no markup.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum

from localpuppet.base.formats.converter import JsonRecord
from localpuppet.base.formats.text import one_line
from localpuppet.web.notify import routing

SCHEMA = 1
# Nodes that a message names, and incidents that a summary does.
MOST_NAMED, MOST_LISTED = 5, 5
_SENTENCES: Mapping[routing.IncidentKind, tuple[str, str]] = {
    routing.IncidentKind.FAILED: ("1 node fails", "{} nodes fail"),
    routing.IncidentKind.LATE: ("1 node is late", "{} nodes are late"),
    routing.IncidentKind.UNRESPONSIVE: ("1 node is unresponsive", "{} nodes are unresponsive"),
    routing.IncidentKind.NOT_TRUSTED: ("1 node is not trusted", "{} nodes are not trusted"),
    routing.IncidentKind.EXPIRY: (
        "the certificate of 1 node expires",
        "the certificates of {} nodes expire",
    ),
    routing.IncidentKind.WRONG_RELEASE: (
        "1 node has other bytes of a release",
        "{} nodes have other bytes of a release",
    ),
}


_BARE_DRIFT = "Puppet keeps correcting a resource"


class Event(StrEnum):
    """What a message reports."""

    OPENED = "opened"
    CLOSED = "closed"
    SUMMARY = "summary"
    TEST = "test"


class IncidentText(JsonRecord):
    """An incident as a channel receives it.

    The title is a sentence without a full stop; `nodes` are the first of `count`.
    """

    id: str
    kind: routing.IncidentKind
    severity: routing.Severity
    cause: str
    title: str
    release: str
    detail: str
    nodes: tuple[str, ...]
    count: int
    opened_at: float
    closed_at: float | None
    url: str

    @classmethod
    def of(cls, incident: routing.Incident, route: routing.Route, dashboard: str) -> "IncidentText":
        about = incident.condition
        nodes = route.of_nodes(about)
        return cls(
            id=incident.id,
            kind=about.kind,
            severity=about.kind.severity,
            cause=about.cause,
            title=_title(incident, len(nodes)),
            release=about.release,
            detail=about.detail,
            nodes=nodes[:MOST_NAMED],
            count=len(nodes),
            opened_at=incident.opened_at or incident.seen_at,
            closed_at=incident.closed_at,
            url=dashboard.rstrip("/") + about.page if dashboard else "",
        )

    @property
    def named(self) -> str:
        """Return the first names, and how many more nodes there are; empty without nodes."""
        more = self.count - len(self.nodes) if self.nodes else 0
        return ", ".join(self.nodes) + (f" and {more} more" if more else "")


def _title(incident: routing.Incident, count: int) -> str:
    about = incident.condition
    if about.kind is routing.IncidentKind.DRIFT:
        return f"Puppet keeps correcting {about.subject}"
    if about.kind is routing.IncidentKind.EXPIRY and about.subject:
        return f"the certificate {about.subject} expires"
    if about.kind is routing.IncidentKind.ROLLOUT:
        return f"the rollout {about.subject}"
    if about.kind is routing.IncidentKind.BUS:
        return about.subject
    one, several = _SENTENCES[about.kind]
    return one if count == 1 else several.format(count)


class Notice(JsonRecord):
    """A message to a channel: the body of a webhook.

    Its id is equal in each attempt to send it. `incidents` are the first of `total`.
    """

    schema: int = SCHEMA
    id: str
    event: Event
    fleet: str
    at: float
    total: int
    incidents: tuple[IncidentText, ...] = ()

    @property
    def title(self) -> str:
        """Return the message in a line."""
        if self.event is Event.SUMMARY:
            number = f"{self.total} incidents are" if self.total != 1 else "1 incident is"
            return f"{number} open" if self.total else "No incident is open"
        about = self.incidents[0]
        release = f" on {about.release}" if about.release else ""
        return f"{'Over: ' if self.event is Event.CLOSED else ''}{about.title}{release}"

    @property
    def bare(self) -> "Notice":
        """Return the message without what comes from nodes; it is about the same incidents."""
        texts = [
            replace(
                one,
                title=_BARE_DRIFT if one.kind is routing.IncidentKind.DRIFT else one.title,
                release="",
                detail="the dashboard shows it: the channel refused the message with it",
                nodes=(),
            )
            for one in self.incidents
        ]
        return replace(self, incidents=tuple(texts))

    @property
    def lines(self) -> Sequence[tuple[str, str]]:
        """Return what is below the title: labels, which may be empty, and texts."""
        if self.event is Event.SUMMARY:
            listed = [
                ("", f"{one.title}{f' on {one.release}' if one.release else ''}")
                for one in self.incidents
            ]
            more = self.total - len(listed)
            return [*listed, ("", f"and {more} more")] if more else listed
        found: list[tuple[str, str]] = []
        for one in self.incidents if self.event is not Event.TEST else ():
            found += [("Cause", one.detail), ("Nodes", one.named)]
            found += [("Since", _minute(one.opened_at))]
            if one.closed_at is not None:
                found += [("Until", _minute(one.closed_at))]
        return [(label, text) for label, text in found if text]

    @property
    def url(self) -> str:
        """Return the page about it, or empty."""
        return self.incidents[0].url if len(self.incidents) == 1 else ""

    @property
    def plain(self) -> str:
        """Return the message as text without markup."""
        lines = [f"{label}: {text}" if label else f"- {text}" for label, text in self.lines]
        return "\n".join(map(one_line, filter(None, [f"{self.title}.", *lines, self.url]))) + "\n"


def _minute(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def test_notice(identifier: str, settings: routing.NotifySettings, now: float) -> Notice:
    """Return a test message, with an incident that lasts no time."""
    condition = routing.Condition(
        key="test", kind=routing.IncidentKind.DRIFT, subject="Notify[test]"
    )
    incident = routing.Incident(condition=condition, seen_at=now, opened_at=now, closed_at=now)
    route = routing.Route(
        name="", channel=routing.ChannelSettings(type=routing.ChannelType.WEBHOOK)
    )
    text = IncidentText.of(incident, route, settings.dashboard)
    return Notice(
        id=identifier,
        event=Event.TEST,
        fleet=settings.fleet,
        at=now,
        total=1,
        incidents=(replace(text, title="this is a test message", detail=""),),
    )


def chat_text(notice: Notice) -> str:
    """Return a message for Slack and those that take its form, such as Mattermost.

    What comes from nodes is in code spans: neither program reads markup or mentions there.
    """
    fleet, mark = _code(notice.fleet), ":white_check_mark:"
    if notice.event is Event.OPENED:
        urgent = notice.incidents[0].severity is routing.Severity.CRITICAL
        mark = ":red_circle:" if urgent else ":large_orange_circle:"
    elif notice.event is Event.SUMMARY:
        mark = ":information_source:"
    lines = [f"{mark} {fleet} {_code(notice.title)}"]
    lines += [
        f"{label}: {_code(text)}" if label else f"• {_code(text)}" for label, text in notice.lines
    ]
    if notice.url:
        lines.append(f"<{notice.url}|Dashboard>")
    return "\n".join(lines)


def _code(text: str) -> str:
    line = one_line(text).replace("`", "'")
    return "`" + line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") + "`"
