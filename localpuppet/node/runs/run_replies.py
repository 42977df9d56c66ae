"""What of a run may leave the node: its log, its report, its context, foreseen changes.

- Only the lines before a line show whether it is content of a file (`puppet.changes`), so the log
  is read from its beginning. A piece without any part of a diff is not split into lines.
- Memory holds only the last pieces: as much as is returned, and one piece more.
- Texts of queries are those that the inventory entry publishes to every node; of answers only names
  and numbers leave the node, and no parameter of a collected resource.
- URLs lose their login and query.

Messages of Puppet hold values of resources, so each needs a separate right to read. Sensitive
values, diffs and contents of files never leave the node.

The node makes marks with a secret, `agent/changes.key`, which is created at first use.
"""

import json
import secrets
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from io import BufferedIOBase
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.json_file import read_json
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.values import Json, mapping_of
from localpuppet.base.machine.files import add_durably, disk_errors, make_private, state_problem
from localpuppet.base.value import Value
from localpuppet.node.puppet.changes import Diffs, foreseen, key_of
from localpuppet.node.puppet.command_line import with_places_in_release
from localpuppet.node.puppet.resources import (
    ReportedResource,
    ResourceEvent,
    ResourceResult,
    resources_of,
    slowest,
)
from localpuppet.node.runs.query_record import RecordedQuery, read_listed, read_queries
from localpuppet.node.runs.run import Status, published
from localpuppet.node.runs.run_records import Records, RunDirectory

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


PIECE = 256 * 1024


class LogExcerpt(Value):
    lines: list[str]
    before: int
    left_out: int


class _Piece(Value):
    """Some lines, as bytes or cut already; as JSON they take at least `least` bytes."""

    lines: bytes | list[str]
    count: int
    least: int


class LogEnd:
    """Reads the end of logs: at most `most` bytes as JSON, a `piece` of the log at a time."""

    def __init__(self, *, most: int, longest: int, piece: int = PIECE) -> None:
        self._most = most
        self._longest = longest
        self._size = piece

    def read(self, log: BufferedIOBase) -> LogExcerpt:
        diffs = Diffs()
        held: deque[_Piece] = deque()
        size = before = left_out = 0
        for data in self._pieces(log):
            piece = self._piece(data, diffs)
            left_out += _count(data) - piece.count
            held.append(piece)
            size += piece.least
            while size - held[0].least >= self._most:
                size -= held[0].least
                before += held.popleft().count
        lines = self._last(held)
        before += sum(piece.count for piece in held) - len(lines)
        return LogExcerpt(lines=lines, before=before, left_out=left_out)

    def _piece(self, data: bytes, diffs: Diffs) -> _Piece:
        if diffs.may_be_in(data) or not self._is_short(data):
            lines = [self._cut(line) for line in diffs.without(_lines(data))]
            return _Piece(lines=lines, count=len(lines), least=sum(map(len, lines)))
        return _Piece(lines=data, count=_count(data), least=len(data))

    def _pieces(self, log: BufferedIOBase) -> Iterator[bytes]:
        """Yield whole lines, each with its newline."""
        while data := log.read(self._size):
            data += b"" if data.endswith(b"\n") else log.readline()
            yield data if data.endswith(b"\n") else data + b"\n"

    def _is_short(self, data: bytes) -> bool:
        """Return whether the data certainly has no line that must be cut."""
        half = self._longest // 2
        return all(data.find(b"\n", at, at + half) >= 0 for at in range(0, len(data), half))

    def _last(self, held: deque[_Piece]) -> list[str]:
        lines: deque[str] = deque()
        room = self._most
        for line in chain.from_iterable(map(_backwards, reversed(held))):
            room -= weight(line)
            if room < 0:
                break
            lines.appendleft(line)
        return list(lines)

    def _cut(self, line: str) -> str:
        return line if len(line) <= self._longest else f"{line[: self._longest]}…"


def weight(value: object) -> int:
    """Return how many bytes a value takes as JSON in a reply."""
    return len(json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace")) + 1


def _count(data: bytes) -> int:
    return data.count(b"\n") if b"\r" not in data else len(_lines(data))


def _lines(data: bytes) -> list[str]:
    text = data.decode("utf-8", "backslashreplace")
    return text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n")


def _backwards(piece: _Piece) -> Iterator[str]:
    return reversed(_lines(piece.lines) if isinstance(piece.lines, bytes) else piece.lines)


Entry = TypeVar("Entry", bound="DataclassInstance")
# Bytes as JSON of each list, names of an answer, and characters of a text.
MAX_LIST = 8 * 1024
MAX_NAMES = 20
MAX_TEXT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrigin:
    """The source of a run's input and release; `by` is the user who assigned the release."""

    input: str = ""
    input_sha256: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedCause:
    """Why a run began: `trigger`, `timer`, `request`…, from a node or user."""

    kind: str
    sender: str = ""
    path: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedQuery:
    """A query of a run about other nodes, or a collection of their resources."""

    text: str
    count: int
    names: tuple[str, ...]
    age: float | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The origin of a run, its causes, and its queries; each list is cut to its limit."""

    origin: RunOrigin = RunOrigin()
    causes: tuple[ReportedCause, ...] = ()
    cause_count: int = 0
    queries: tuple[ReportedQuery, ...] = ()
    collected: tuple[ReportedQuery, ...] = ()


def run_context(run: RunDirectory) -> RunContext:
    """Return where a run came from, and what it asked other nodes."""
    request = _read_request(run)
    causes: Mapping[str, Any] = mapping_of(request.get("causes"))
    listed = causes.get("causes")
    spelt = [
        _cause(item)
        for item in (listed if isinstance(listed, list) else ())
        if isinstance(item, dict)
    ]
    return RunContext(
        origin=RunOrigin(
            input=_place(_text(request.get("input"))),
            input_sha256=_text(request.get("input_sha256")),
            by=_text(mapping_of(request.get("assignment")).get("by")),
        ),
        causes=fitting(spelt),
        cause_count=causes.get("count", len(spelt)),
        queries=fitting(map(_query, read_queries(run))),
        collected=fitting(read_listed(run.collected, "collectors", _collected)),
    )


def _read_request(run: RunDirectory) -> Mapping[str, Any]:
    try:
        return run.read_request()
    except FileNotFoundError:
        return {}


def _place(text: str) -> str:
    """Return a path, or a URL without the parts that may be secret."""
    if not text.startswith("https://"):
        return text
    try:
        parts = urlsplit(text)
    except ValueError:
        return "https"
    return f"https://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _cause(raw: Mapping[str, Any]) -> ReportedCause:
    return ReportedCause(
        kind=_text(raw.get("kind")),
        sender=_text(raw.get("sender")),
        path=tuple(map(_text, raw.get("path") or ())),
        tags=tuple(map(_text, raw.get("tags") or ())),
    )


def _query(query: RecordedQuery) -> ReportedQuery:
    return ReportedQuery(
        text=_text(query.text),
        count=len(query.names),
        names=tuple(map(str, query.names[:MAX_NAMES])),
        age=query.age,
        reason=_text(query.reason),
    )


def _collected(raw: object) -> ReportedQuery:
    record: Mapping[str, Any] = mapping_of(raw)
    resources = [
        resource for resource in record.get("resources") or () if isinstance(resource, dict)
    ]
    names = dict.fromkeys(_text(resource.get("node")) for resource in resources)
    return ReportedQuery(
        text=_text(record.get("text")),
        count=len(resources),
        names=tuple(names)[:MAX_NAMES],
        age=record.get("age"),
        reason=_text(record.get("reason")),
    )


def fitting(entries: "Iterable[Entry]") -> "tuple[Entry, ...]":
    """Return the first entries, up to the size limit."""
    fitting_items: list[Entry] = []
    size = 0
    for entry in entries:
        size += weight(asdict(entry))
        if size > MAX_LIST:
            break
        fitting_items.append(entry)
    return tuple(fitting_items)


def _text(value: Any) -> str:  # noqa: ANN401 - of a file
    return one_line(str(value)[:MAX_TEXT]) if value is not None else ""


# Of a log the end, of a report what failed before what changed: bytes as JSON.
MAX_TOLD = 256 * 1024
# Bytes of the origins of lines as JSON.
MAX_ORIGINS = 128 * 1024
# Bytes of a line, or of a message about a resource.
MAX_LINE = 8 * 1024
MAX_EVENTS = 20
MAX_SLOWEST = 10
# Bytes of a report that is read for others: the agent takes several times as much memory for it.
MAX_REPORT = 32 * 1024 * 1024
TOLD = (
    ResourceResult.FAILED,
    ResourceResult.CHANGED,
    ResourceResult.WOULD_CHANGE,
    ResourceResult.SKIPPED,
)


def log_reply(run: RunDirectory, status: Status) -> dict[str, Json]:
    """Return the end of the run's log.

    Returns:
        `run`, `state`, `lines`, the number of lines `before` them and of omitted diff lines;
        `origins`: for each line `time`, `file` and `line` of Puppet's report, or null.
    """
    end = LogExcerpt(lines=[], before=0, left_out=0)
    with disk_errors(run.log), suppress(FileNotFoundError), run.log.open("rb") as log:
        end = LogEnd(most=MAX_TOLD, longest=MAX_LINE).read(log)
    return {
        "run": str(run.id),
        "state": str(status.state),
        "lines": [*end.lines],
        "origins": _origins(run, end.lines),
        "before": end.before,
        "left_out": end.left_out,
    }


def _origins(run: RunDirectory, lines: Sequence[str]) -> list[Json]:
    """Return where Puppet's report says that lines come from, the last ones within the limit."""
    try:
        report = report_of(run)
    except (FileNotFoundError, StateError, ValueError):
        return []
    logs = report.get("logs") if isinstance(report, dict) else None
    messages: dict[str, deque[Mapping[str, Any]]] = {}
    for item in logs if isinstance(logs, list) else ():
        if not isinstance(item, dict):
            continue
        source = "" if item.get("source") == "Puppet" else f"{item.get('source')}: "
        first = f"{source}{item.get('message')}".partition("\n")[0]
        messages.setdefault(first, deque()).append(item)
    origins: list[Json] = []
    room = MAX_ORIGINS
    for line in reversed(lines):
        known = messages.get(line.partition(": ")[2])
        origin: Json = None
        if known and room > 0:
            origin = {key: known[-1].get(key) for key in ("time", "file", "line")}
            known.pop()
        room -= weight(origin)
        origins.append(origin)
    return origins[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport(RunContext):
    """What a run did to which resources: names, and the slowest without events."""

    run: Mapping[str, Any]
    report: bool
    failed: tuple[ReportedResource, ...] = ()
    changed: tuple[ReportedResource, ...] = ()
    would_change: tuple[ReportedResource, ...] = ()
    skipped: tuple[ReportedResource, ...] = ()
    left_out: int = 0
    slowest: tuple[ReportedResource, ...] = ()


def report_reply(run: RunDirectory, status: Status) -> RunReport:
    """Return what a run did to which resources, without values of Sensitive ones.

    Raises:
        StateError: The report is damaged or too large.
    """
    try:
        resources: list[ReportedResource] | None = resources_of(report_of(run))
    except FileNotFoundError:
        resources = None
    except ValueError as error:
        raise StateError(str(error), where=str(run.report)) from error
    context = run_context(run)
    size = left_out = 0
    listed: dict[str, Any] = {}
    for result in TOLD:
        shown = []
        for resource in map(_cut, resources or ()):
            if resource.result is not result:
                continue
            needed = weight(resource.to_dict())
            if size + needed > MAX_TOLD:
                left_out += 1
                continue
            size += needed
            shown.append(resource)
        listed[result.value] = tuple(shown)
    return RunReport(
        run=published(status).to_dict(),
        report=resources is not None,
        **listed,
        left_out=left_out,
        slowest=fitting(
            replace(_cut(slow), events=()) for slow in slowest(resources or [], MAX_SLOWEST)
        ),
        **{name: getattr(context, name) for name in RunContext.__slots__},
    )


def report_of(run: RunDirectory) -> dict[str, Any]:
    """Return Puppet's report of a run, within the size limit for other nodes.

    Raises:
        FileNotFoundError: Puppet left no report.
        StateError: The report is too large.
    """
    try:
        size = run.report.stat().st_size
    except FileNotFoundError:
        raise
    except OSError as error:
        raise state_problem(error, run.report) from error
    if size > MAX_REPORT:
        raise StateError(
            f"is too large to send: {size // 1024**2} MiB, the limit is "
            f"{MAX_REPORT // 1024**2} MiB",
            where=f"report of {run.id}",
            hint=f"'localpuppet report {run.id}' shows it on its own node",
        )
    return read_json(run.report)


def _cut(resource: ReportedResource) -> ReportedResource:
    """Return a resource with the texts and events that may leave the node."""
    return replace(
        resource,
        resource=one_line(resource.resource)[:MAX_LINE],
        file=one_line(resource.file)[:MAX_LINE],
        place=one_line(resource.place)[:MAX_LINE],
        events=tuple(
            ResourceEvent(
                property=event.property[:MAX_LINE],
                status=event.status,
                # A message begins with an empty line where a diff follows.
                message=with_places_in_release(one_line(event.message.partition("\n")[0]))[
                    :MAX_LINE
                ],
                time=event.time,
            )
            for event in resource.events[:MAX_EVENTS]
        ),
    )


FILE = Path("agent", "changes.key")
_BYTES = 32


def foreseen_reply(state: Path, records: Records, run: str, salt: str) -> dict[str, Json]:
    """Return what a noop run would have changed."""
    directory = records.get(run)
    status = records.status(directory)
    if not (status.noop and status.succeeded):
        raise InvalidInputError("is not a successful noop run", where=str(run))
    key = key_of(_secret(state / FILE), salt)
    try:
        predicted = foreseen(report_of(directory), release=status.release, key=key)
    except FileNotFoundError as error:
        raise StateError("has no report", where=f"run {run}") from error
    except ValueError as error:
        raise StateError(str(error), where=str(directory.report)) from error
    return predicted.to_dict()


def _secret(path: Path) -> bytes:
    make_private(path.parent)
    add_durably(path, secrets.token_bytes(_BYTES))
    with disk_errors(path):
        secret = path.read_bytes()
    if len(secret) != _BYTES:
        raise StateError(
            "is damaged",
            where=str(path),
            hint="remove it; localpuppet then reports earlier changes as new",
        )
    return secret
