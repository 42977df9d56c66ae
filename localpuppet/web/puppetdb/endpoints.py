"""The paths below `/pdb/query/v4`, and the query of each one.

- A path is matched before its segments are decoded, so a title may have a `/` as `%2F`.
- An entity that localpuppet does not have is rejected by the query parser, with the reason.

Example: `endpoint_of(["nodes", "web01", "facts", "os"])` selects facts of one node by name.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from localpuppet.base.formats.values import Json

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """What must exist below a path: without it, the answer is 404."""

    name: str
    entity: str
    field: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiEndpoint:
    """A path of the API.

    Attributes:
        entity: The entity, with PuppetDB's name; empty for the root, whose query names it.
        single: The name of the one row that is the answer; empty if the answer is an array.
        detail: `logs` or `metrics` of a report, which are asked of its node; otherwise empty.
    """

    entity: str
    only: tuple[tuple[str, Json], ...] = ()
    parents: tuple[Parent, ...] = ()
    single: str = ""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _RowPath:
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
    "producers": _RowPath(
        name="producer",
        key="name",
        below=("catalogs", "factsets", "reports"),
    ),
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
