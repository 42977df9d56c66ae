"""Requests to the API: their path, parameters and body within limits, and the query of each.

- A path is matched before its segments are decoded, so a title may have a `/` as `%2F`.
- An entity that localpuppet does not have is rejected by the query parser, with the reason.

Example: `endpoint_of(["nodes", "web01", "facts", "os"])` selects facts of one node by name.

- As in PuppetDB, a parameter that the endpoint does not have is an error.
"""

import asyncio
import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from urllib.parse import parse_qsl, unquote

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.strict_json import compact, loads
from localpuppet.base.formats.values import Json
from localpuppet.base.value import Value
from localpuppet.fleet.inventory.query import tree
from localpuppet.fleet.inventory.query.ast_form import entity_named, parse_condition
from localpuppet.fleet.inventory.query.pql import PARAMETERS, parse_client_query
from localpuppet.fleet.inventory.query.syntax import check_values, parse_json
from localpuppet.web.access.http_limits import MAX_BODIES, MAX_BODY
from localpuppet.web.puppetdb.event_counts import EventCounting

_GLOBAL = frozenset(
    {
        "optimize_drop_unused_joins",
        "include_facts_expiration",
        "include_package_inventory",
        "explain",
        "origin",
        "timeout",
    }
)
_ONE = _GLOBAL | {"pretty"}
_TYPICAL = _ONE | {"query", "limit", "offset", "order_by", "include_total"}
_DISTINCT = frozenset({"distinct_resources", "distinct_start_time", "distinct_end_time"})
_COUNTS = _DISTINCT | {"summarize_by", "counts_filter", "count_by"}


class Parent(Value):
    """What must exist below a path: without it, the answer is 404."""

    name: str
    entity: str
    field: str
    value: str


class ApiEndpoint(Value):
    entity: str  # the entity, with PuppetDB's name; empty for the root, whose query names it
    only: tuple[tuple[str, Json], ...] = ()
    parents: tuple[Parent, ...] = ()
    single: str = ""  # the name of the one row that is the answer; empty if the answer is an array
    # `logs` or `metrics` of a report, which are asked of its node; otherwise empty.
    detail: str = ""
    allowed: frozenset[str] = _TYPICAL
    required: tuple[str, ...] = ()

    @property
    def counts(self) -> frozenset[str]:
        """Return the parameters of event counts that it has."""
        return self.allowed & _COUNTS

    def below(self, *only: tuple[str, Json]) -> "ApiEndpoint":
        """Return the endpoint with more conditions."""
        return replace(self, only=(*self.only, *only))


ROOT = ApiEndpoint(entity="", allowed=_TYPICAL | {"ast_only"}, required=("query",))
_PLAIN = {
    **{
        name: ApiEndpoint(entity=name.replace("-", "_"))
        for name in (
            "catalog-input-contents",
            "catalog-inputs",
            "edges",
            "fact-contents",
            "fact-names",
            "fact-paths",
            "inventory",
            "package-inventory",
            "packages",
        )
    },
    "event-counts": ApiEndpoint(
        entity="event_counts", allowed=_TYPICAL | _COUNTS, required=("summarize_by",)
    ),
    "events": ApiEndpoint(entity="events", allowed=_TYPICAL | _DISTINCT),
    "aggregate-event-counts": ApiEndpoint(
        entity="aggregate_event_counts",
        allowed=_GLOBAL | _COUNTS | {"query"},
        required=("summarize_by",),
    ),
}
# Paths whose segments below the entity narrow the query: the fields in order.
_NARROWED = {"facts": ("name", "value"), "resources": ("type", "title")}


class _RowPath(Value):
    """The paths of a row of an entity, and what is below them."""

    name: str
    key: str = "certname"
    column: str = "certname"
    below: Collection[str] = ()
    parts: Mapping[str, ApiEndpoint] = field(default_factory=dict)


_ROWS = {
    "catalogs": _RowPath(name="catalog", below=("edges", "resources")),
    "environments": _RowPath(
        name="environment",
        key="name",
        column="environment",
        below=("facts", "resources", "reports", "events"),
    ),
    "factsets": _RowPath(name="factset", parts={"facts": ApiEndpoint(entity="factsets")}),
    "nodes": _RowPath(name="node", below=("facts", "resources")),
    "producers": _RowPath(name="producer", key="name", below=("catalogs", "factsets", "reports")),
    "reports": _RowPath(
        name="report",
        key="hash",
        column="report",
        below=("events",),
        parts={
            part: ApiEndpoint(entity="reports", detail=part, allowed=_ONE)
            for part in ("logs", "metrics")
        },
    ),
}


def endpoint_of(segments: Sequence[str]) -> ApiEndpoint | None:
    """Return the endpoint of a path below `/pdb/query/v4`; `None` for an unknown path."""
    if not segments:
        return ROOT
    name, rest = segments[0], segments[1:]
    fields = _NARROWED.get(name, ())
    if fields and len(rest) <= len(fields):
        return ApiEndpoint(entity=name).below(*zip(fields, rest, strict=False))
    if not rest:
        return ApiEndpoint(entity=name) if name in _ROWS else _PLAIN.get(name)
    return _of_row(name, _ROWS[name], rest) if name in _ROWS else None


def _of_row(entity: str, path: _RowPath, rest: Sequence[str]) -> ApiEndpoint | None:
    """Return the endpoint of a row, of a part of it, or of what is below it."""
    value, *inner = rest
    if not inner:
        if entity == "reports":
            return None
        return ApiEndpoint(entity=entity, only=((path.key, value),), single=path.name)
    if inner[0] in path.below:
        child, column = endpoint_of(inner), path.column
    else:
        child, column = path.parts.get("/".join(inner)), path.key
    if child is None:
        return None
    parent = Parent(name=path.name, entity=entity, field=path.key, value=value)
    return replace(child.below((column, value)), parents=(parent, *child.parents))


# What PuppetDB has and localpuppet has not; a client may still write that it does not need it.
_UNSUPPORTED = ("explain", "include_facts_expiration", "include_package_inventory")


class RequestParameters(Value):
    """The parameters of a request; the answer may be the query in AST form."""

    query: Mapping[str, Json]
    pretty: bool
    ast_only: bool
    timeout: float | None
    counts: Mapping[str, Json]

    def digest(self, segments: Sequence[str]) -> bytes:
        """Return a digest of what a question depends on."""
        text = compact([segments, self.query, self.counts])
        return hashlib.sha256(text.encode()).digest()


def from_texts(pairs: Sequence[tuple[str, str]], endpoint: ApiEndpoint) -> RequestParameters:
    """Return the parameters in a query string or a form."""
    texts: dict[str, Json] = {}
    for name, text in pairs:
        if name in texts:
            raise InvalidInputError(f"The query parameter '{name[:40]}' is repeated")
        texts[name] = text
    return from_body(texts, endpoint)


def from_body(values: Json, endpoint: ApiEndpoint) -> RequestParameters:
    if not isinstance(values, dict):
        raise InvalidInputError("The body of the request must be a JSON object")
    check_values(values)
    missing = next((name for name in endpoint.required if name not in values), None)
    if missing is not None:
        raise InvalidInputError(f"Missing required query parameter '{missing}'")
    unknown = next((name for name in sorted(values) if name not in endpoint.allowed), None)
    if unknown is not None:
        raise InvalidInputError(f"Unsupported query parameter '{unknown[:40]}'")
    refused = next((name for name in _UNSUPPORTED if values.get(name) not in _OFF), None)
    if refused is not None:
        raise InvalidInputError(f"The query parameter '{refused}' is not supported")
    return RequestParameters(
        query={name: values[name] for name in PARAMETERS if name in values},
        pretty=_flag(values.get("pretty")),
        ast_only=_flag(values.get("ast_only")),
        timeout=_timeout(values.get("timeout")),
        counts={name: values[name] for name in endpoint.counts if name in values},
    )


_OFF = (None, False, "false", "")


def _flag(value: Json) -> bool:
    return str(value).lower() == "true"


def _timeout(value: Json) -> float | None:
    if value is None:
        return None
    try:
        seconds = float(str(value))
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise InvalidInputError(f"Query timeout must be non-negative number, not {str(value)[:40]}")
    return seconds or None


# Seconds for the body of a request.
BODY_PATIENCE = 10.0
_JSON = "application/json"
_FORM = "application/x-www-form-urlencoded"
_REFUSED = re.compile(r"q=0(\.0*)?\Z")


class RequestReading:
    """Reads the parameters of requests, of limited size and in limited time."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._bodies = asyncio.Semaphore(MAX_BODIES)

    async def parameters(self, request: Request, endpoint: ApiEndpoint) -> RequestParameters:
        accepted = request.headers.get("accept")
        if accepted is not None and listed(accepted).isdisjoint(("*/*", "application/*", _JSON)):
            raise HTTPException(406, f"must accept {_JSON}")
        kind = request.headers.get("content-type", _JSON).partition(";")[0].strip().lower()
        if request.method == "POST" and kind not in (_JSON, _FORM):
            raise HTTPException(415, f"content type {kind[:40]} not supported")
        coding = request.headers.get("content-encoding", "identity").lower()
        if coding != "identity":  # a small body may have a large content
            raise HTTPException(415, f"content encoding {coding[:40]} not supported")
        if kind == _FORM:
            # Clients that use puppetdb-ruby send the parameters of a GET as a form in its body.
            form = (await self._body(request)).decode("utf-8", "replace")
            return from_texts([*_pairs(request.url.query), *_pairs(form)], endpoint)
        if request.method != "POST":
            return from_texts(_pairs(request.url.query), endpoint)
        try:
            values = loads(await self._body(request))
        except ValueError as error:
            raise InvalidInputError(f"Malformed JSON in the body: {error}") from error
        return from_body(values, endpoint)

    async def _body(self, request: Request) -> bytes:
        body = bytearray()
        try:
            async with asyncio.timeout(self._patience), self._bodies:
                async for part in request.stream():
                    body += part
                    if len(body) > MAX_BODY:
                        raise HTTPException(413, f"the body has more than {MAX_BODY} bytes")
        except (TimeoutError, ClientDisconnect) as error:
            raise HTTPException(408, "the body did not arrive in time") from error
        return bytes(body)


def segments_below(prefix: str, request: Request) -> list[str]:
    """Return the decoded segments of a path below a prefix."""
    raw = request.scope.get("raw_path") or request.scope["path"].encode()
    path = raw.decode("latin-1").partition("?")[0]
    try:
        segments = [unquote(item, errors="strict") for item in path.removeprefix(prefix).split("/")]
    except UnicodeDecodeError as error:
        raise HTTPException(400, "The path is not UTF-8") from error
    return segments[:-1] if segments[-1:] == [""] and len(segments) > 1 else segments


def listed(header: str) -> set[str]:
    """Return what a header such as `Accept-Encoding` accepts, in lower case."""
    parts = (part.lower().replace(" ", "").partition(";") for part in header.split(","))
    return {name for name, _, quality in parts if not _REFUSED.match(quality)}


def _pairs(text: str) -> Sequence[tuple[str, str]]:
    try:
        return parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=50)
    except ValueError as error:
        raise InvalidInputError(f"Malformed query string: {error}") from error


# Rows of a query as JSON texts → rows of the answer as JSON texts.
RowShape = Callable[[Iterator[str]], Iterator[str]]
_CLAUSES = (["group_by"], ["order_by"], ["limit"], ["offset"])


class Question(Value):
    """The queries of a request."""

    select: tree.Select
    total: bool
    # Queries that must have a row, each with the message if it has none.
    parents: tuple[tuple[tree.Select, str], ...]
    absent: str  # the message if a single row does not exist; empty if the answer is an array
    shape: RowShape | None = None  # makes the rows of the answer from those of the query

    @property
    def is_of_one_node(self) -> bool:
        """Whether it selects whole reports of a node, as the view of a report does."""
        select = self.select
        return (
            select.entity is tree.Entity.REPORTS
            and select.columns is None
            and any(
                tree.is_equality(condition, "certname")
                for condition in tree.conjuncts(select.where)
            )
        )


def question_of(endpoint: ApiEndpoint, parameters: RequestParameters) -> Question:
    entity = entity_named(endpoint.entity) if endpoint.entity else None
    if parameters.counts.get("distinct_resources") in (True, "true"):
        raise InvalidInputError(
            "The query parameter 'distinct_resources' is not supported",
            hint='select the newest reports: ["=", "latest_report?", true]',
        )
    if entity in (tree.Entity.EVENT_COUNTS, tree.Entity.AGGREGATE_EVENT_COUNTS):
        return _counting(entity, parameters)
    query = {} if endpoint.single else dict(parameters.query)
    if endpoint.only:
        query["query"] = _only(query.get("query"), endpoint.only)
    asked = parse_client_query(query, entity)
    absent = ""
    if endpoint.single:
        absent = _unknown(endpoint.single, str(endpoint.only[0][1]))
    return Question(
        select=_sorted(asked.select),
        total=asked.total,
        parents=tuple(map(_parent, endpoint.parents)),
        absent=absent,
    )


def _counting(entity: tree.Entity, parameters: RequestParameters) -> Question:
    """Return the question that counts events: its query selects events."""
    paging = {name: value for name, value in parameters.query.items() if name != "query"}
    page = parse_client_query(paging, entity)
    counting = EventCounting.parse(parameters.counts, page.select)
    events = parse_client_query({"query": parameters.query.get("query")}, tree.Entity.EVENTS).select
    if page.total:
        raise InvalidInputError("The query parameter 'include_total' is not supported here")
    return Question(
        select=counting.select(events.where),
        total=False,
        parents=(),
        absent="",
        shape=counting.shape,
    )


def _only(query: Json, only: tuple[tuple[str, Json], ...]) -> Json:
    """Return a query with the conditions that its path adds."""
    conditions: list[Json] = [["=", field, value] for field, value in only]
    if isinstance(query, str):
        query = parse_json(query, "query")
    if query in (None, []):
        return ["and", *conditions]
    if not isinstance(query, list) or query[0] not in ("extract", "from"):
        return ["and", query, *conditions]
    # After the fields or the entity, a condition may follow, and then clauses.
    rest = query[2:]
    if rest and not (isinstance(rest[0], list) and rest[0][:1] in _CLAUSES):
        conditions.insert(0, rest.pop(0))
    return [
        *query[:2],
        ["and", *(condition for condition in conditions if condition is not None)],
        *rest,
    ]


def _sorted(select: tree.Select) -> tree.Select:
    """Return a query in the order that PuppetDB has by default."""
    if select.entity is not tree.Entity.FACT_NAMES or select.order:
        return select
    return replace(select, order=(tree.SortOrder(field=tree.Field(column="name", text="name")),))


def _parent(parent: Parent) -> tuple[tree.Select, str]:
    entity = entity_named(parent.entity)
    columns = (tree.Field(column=parent.field, text=parent.field),)
    where = parse_condition(["=", parent.field, parent.value], entity)
    select = tree.Select(entity=entity, where=where, columns=columns, limit=1)
    return select, _unknown(parent.name, parent.value)


def _unknown(name: str, value: str) -> str:
    return f"No information is known about {name} {value}"
