"""Where a run came from, and what it asked other nodes, as it may leave the node with its report.

- Texts of queries are those that the inventory entry publishes to every node; of answers only names
  and numbers leave the node, and no parameter of a collected resource.
- URLs lose their login and query.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.values import mapping_of
from localpuppet.node.runs.listed import read_listed
from localpuppet.node.runs.log_end import weight
from localpuppet.node.runs.query_record import RecordedQuery, read_queries
from localpuppet.node.runs.records import RunDirectory

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Entry = TypeVar("Entry", bound="DataclassInstance")
# Bytes as JSON of each list, names of an answer, and characters of a text.
MAX_LIST = 8 * 1024
MAX_NAMES = 20
MAX_TEXT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrigin:
    """The source of a run's input and release.

    Attributes:
        input: A path, or a URL; empty if unknown.
        input_sha256: The digest of its bytes.
        by: The user who assigned the release; empty if the input names it.
    """

    input: str = ""
    input_sha256: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedCause:
    """Why a run began.

    Attributes:
        kind: `trigger`, `timer`, `request`…
        sender: The node or user that sent it, or empty.
        path: The nodes along which it came, the first first.
        tags: Its tags.
    """

    kind: str
    sender: str = ""
    path: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedQuery:
    """A query of a run about other nodes, or a collection of their resources.

    Attributes:
        text: The query as written in Puppet code.
        count: The number of nodes or resources in the answer.
        names: The first of the nodes.
        age: Seconds since the answer was last confirmed as current; `None` if unknown.
        reason: Why the answer is missing, or empty.
    """

    text: str
    count: int
    names: tuple[str, ...]
    age: float | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The origin of a run, its causes, and its queries; each list is cut to its limit.

    Attributes:
        origin: The source of its input.
        causes: Why it began.
        cause_count: The number of all causes.
        queries: Its queries.
        collected: Its collections.
    """

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
