"""Reads the report of a run as a node sent it, without trusting its form or size."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.text import folded, one_line
from localpuppet.base.formats.times import parse_time, show_epoch
from localpuppet.base.formats.values import Json
from localpuppet.node.puppet.command import in_release, with_places_in_release
from localpuppet.node.puppet.resources import ResourceResult

MOST = 200
MAX_MESSAGES = 20
# Causes, questions, names in an answer, and lines of a log.
MOST_CAUSES, MOST_QUERIES, MOST_NAMES = 20, 50, 20
MOST_LINES = 2000
TITLES = {
    ResourceResult.FAILED: "Failed",
    ResourceResult.CHANGED: "Changed",
    ResourceResult.WOULD_CHANGE: "Would change",
    ResourceResult.SKIPPED: "Skipped",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A resource with its result.

    Attributes:
        ref: Type and title.
        place: File and line of its declaration; empty if unknown.
        seconds: Its evaluation time; `None` if unknown.
        messages: Puppet's messages.
    """

    ref: str
    place: str
    seconds: float | None
    messages: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceGroup:
    """The resources with one result.

    Attributes:
        name: A word for the result.
        title: A heading.
        resources: At most `MOST`.
        more: The number of further resources.
    """

    name: str
    title: str
    resources: tuple[Resource, ...]
    more: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseView:
    """Why a run began.

    Attributes:
        kind: `trigger`, `timer`, `request`…
        path: The nodes along which it came, the first first; the sender alone if no others.
        tags: Its tags.
    """

    kind: str
    path: tuple[str, ...]
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryView:
    """A query of a run about other nodes, or a collection of their resources.

    Attributes:
        text: The query as written in Puppet code.
        count: The number of nodes or resources in the answer.
        names: Some of the nodes.
        reason: Why the answer is missing, or empty.
    """

    text: str
    count: int
    names: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The source of a run's input and release.

    Attributes:
        input: A path, or a URL; empty if unknown.
        digest: The digest of its bytes.
        by: The user who assigned the release; empty if the input names it.
    """

    input: str = ""
    digest: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """The report of a run.

    Attributes:
        there: Whether Puppet left a report.
        parts: Resources by result; empty parts are left out.
        left_out: The number of resources that the node omitted.
        slowest: The resources that took longest.
        origin: The source of its input.
        causes: Why the run began.
        queries: Its queries.
        collected: Its collections.
    """

    there: bool
    parts: tuple[ResourceGroup, ...]
    left_out: int
    slowest: tuple[Resource, ...] = ()
    origin: Origin = Origin()
    causes: tuple[CauseView, ...] = ()
    queries: tuple[QueryView, ...] = ()
    collected: tuple[QueryView, ...] = ()

    @classmethod
    def read(cls, fields: Mapping[str, Json]) -> "RunReport":
        """Return the report in an answer, see `runs.run_replies.report_reply`.

        Raises:
            InvalidInputError: The value is not a report.
        """
        left_out = fields.get("left_out", 0)
        parts = []
        for fate, title in TITLES.items():
            listed = fields.get(fate.value, [])
            if not isinstance(listed, list):
                raise _bad(fate.value)
            if listed:
                shown = tuple(_resource(resource) for resource in listed[:MOST])
                more = len(listed) - len(shown)
                parts.append(
                    ResourceGroup(name=fate.value, title=title, resources=shown, more=more)
                )
        return cls(
            there=fields.get("report") is True,
            parts=tuple(parts),
            left_out=left_out if isinstance(left_out, int) else 0,
            slowest=tuple(_resource(resource) for resource in _listed(fields, "slowest", MOST)),
            origin=_origin(fields.get("origin")),
            causes=tuple(_cause(cause) for cause in _listed(fields, "causes", MOST_CAUSES)),
            queries=tuple(_question(query) for query in _listed(fields, "queries", MOST_QUERIES)),
            collected=tuple(
                _question(collector) for collector in _listed(fields, "collected", MOST_QUERIES)
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOrigin:
    """Where a line of a log comes from.

    Attributes:
        time: When Puppet logged it, as `show_epoch` writes it; empty if unknown.
        file: The file of the resource; empty if unknown.
        line: The line in the file; `None` if unknown.
    """

    time: str = ""
    file: str = ""
    line: int | None = None

    @classmethod
    def read(cls, fields: Json) -> "LogOrigin":
        """Return the origin in an answer, see `runs.run_replies.log_reply`."""
        fields = fields if isinstance(fields, dict) else {}
        try:
            time = show_epoch(parse_time(str(fields.get("time"))).timestamp())
        except ValueError:
            time = ""
        file, line = fields.get("file"), fields.get("line")
        return cls(
            time=time,
            file=one_line(in_release(file)) if isinstance(file, str) else "",
            line=line if isinstance(line, int) else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLogTail:
    """The end of a run's log.

    Attributes:
        lines: The last lines, at most `MOST_LINES`; repeated ones once with their number.
        before: The number of lines before them.
        left_out: The number of omitted diff lines.
        origins: Where lines come from, by their text.
    """

    lines: tuple[str, ...]
    before: int
    left_out: int
    origins: Mapping[str, LogOrigin] = field(default_factory=dict)

    @classmethod
    def read(cls, fields: Mapping[str, Json]) -> "RunLogTail":
        """Return the log in an answer, see `runs.run_replies.log_reply`.

        Raises:
            InvalidInputError: The value is not a log.
        """
        lines = _texts(fields.get("lines", []))
        kept = lines[-MOST_LINES:]
        before = _number(fields.get("before")) + len(lines) - len(kept)
        origins = fields.get("origins")
        listed = origins if isinstance(origins, list) and len(origins) == len(lines) else ()
        return cls(
            lines=tuple(folded(kept)),
            before=before,
            left_out=_number(fields.get("left_out")),
            origins=dict(zip(lines, map(LogOrigin.read, listed), strict=False)),
        )


def _listed(fields: Mapping[str, Json], key: str, most: int) -> list[Json]:
    listed = fields.get(key, [])
    if not isinstance(listed, list):
        raise _bad(key)
    return listed[:most]


def _origin(fields: Json) -> Origin:
    if not isinstance(fields, dict):
        return Origin()
    return Origin(
        input=str(fields.get("input", "")),
        digest=str(fields.get("input_sha256", "")),
        by=str(fields.get("by", "")),
    )


def _cause(fields: Json) -> CauseView:
    if not isinstance(fields, dict):
        raise _bad("a cause")
    path = _texts(fields.get("path", []))[:MOST_NAMES]
    sender = fields.get("sender")
    return CauseView(
        kind=str(fields.get("kind", "")),
        path=path or ((sender,) if isinstance(sender, str) and sender else ()),
        tags=_texts(fields.get("tags", []))[:MOST_NAMES],
    )


def _question(fields: Json) -> QueryView:
    if not isinstance(fields, dict):
        raise _bad("a question")
    return QueryView(
        text=str(fields.get("text", "")),
        count=_number(fields.get("count")),
        names=_texts(fields.get("names", []))[:MOST_NAMES],
        reason=str(fields.get("reason") or ""),
    )


def _texts(value: Json) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise _bad("a list of texts")
    return tuple(map(str, value))


def _number(value: Json) -> int:
    return value if isinstance(value, int) else 0


def _resource(fields: Json) -> Resource:
    if not isinstance(fields, dict) or not isinstance(fields.get("resource"), str):
        raise _bad("a resource")
    file, line, seconds = fields.get("file"), fields.get("line"), fields.get("seconds")
    events = fields.get("events")
    events = events if isinstance(events, list) else []
    place = in_release(file) if isinstance(file, str) else ""
    known = isinstance(seconds, int | float) and math.isfinite(seconds)
    return Resource(
        ref=str(fields["resource"]),
        place=f"{place}:{line}" if place and isinstance(line, int) else place,
        seconds=float(seconds) if known and isinstance(seconds, int | float) else None,
        messages=tuple(
            with_places_in_release(str(event["message"]))
            for event in events[:MAX_MESSAGES]
            if isinstance(event, dict) and isinstance(event.get("message"), str)
        ),
    )


def _bad(place: str) -> InvalidInputError:
    return InvalidInputError("is not a valid part of a report", where=f"the node's answer: {place}")
