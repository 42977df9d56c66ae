"""The paths below `/pdb/query/v4`, and the query of each one.

- A path is matched before its segments are decoded, so a title may have a `/` as `%2F`.
- An entity that localpuppet does not have is rejected by the query parser, with the reason.

Example: `endpoint_of(["nodes", "web01", "facts", "os"])` selects facts of one node by name.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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
    """What must exist below a path: without it, the answer is 404.

    Attributes:
        name: Its name in messages.
        entity: Its entity.
        field: The field that names it.
        value: The value in the path.
    """

    name: str
    entity: str
    field: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiEndpoint:
    """A path of the API.

    Attributes:
        entity: The entity, with PuppetDB's name; empty for the root, whose query names it.
        only: Conditions that the path adds to the query: fields and their values.
        parents: What must exist.
        single: The name of the one row that is the answer; empty if the answer is an array.
        detail: `logs` or `metrics` of a report, which are asked of its node; otherwise empty.
        allowed: The parameters.
        required: Parameters that a request must have.
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
            "producers",
        )
    },
    "event-counts": ApiEndpoint(
        entity="event_counts", allowed=_TYPICAL | _COUNTS, required=("summarize_by",)
    ),
    "aggregate-event-counts": ApiEndpoint(
        entity="aggregate_event_counts",
        allowed=_GLOBAL | _COUNTS | {"query"},
        required=("summarize_by",),
    ),
}
# Paths whose first segment below the entity narrows the query: the fields in order.
_NARROWED = {"facts": ("name", "value"), "resources": ("type", "title")}
_Rest = Sequence[str]


def endpoint_of(segments: Sequence[str]) -> ApiEndpoint | None:
    """Return the endpoint of a path below `/pdb/query/v4`; `None` for an unknown path.

    Args:
        segments: The decoded segments of the path.
    """
    if not segments:
        return ROOT
    name, rest = segments[0], segments[1:]
    if not rest and name in _PLAIN:
        return _PLAIN[name]
    if name in _NARROWED:
        return _narrowed(name, rest)
    nested = _NESTED.get(name)
    return None if nested is None else nested(rest)


def _narrowed(name: str, rest: _Rest) -> ApiEndpoint | None:
    fields = _NARROWED[name]
    if len(rest) > len(fields):
        return None
    return ApiEndpoint(entity=name).below(*zip(fields, rest, strict=False))


def _nodes(rest: _Rest) -> ApiEndpoint | None:
    inner = _narrowed(rest[1], rest[2:]) if rest[1:2] and rest[1] in _NARROWED else None
    return _of_node("node", "nodes", rest, inner)


def _factsets(rest: _Rest) -> ApiEndpoint | None:
    inner = ApiEndpoint(entity="factsets") if list(rest[1:]) == ["facts"] else None
    return _of_node("factset", "factsets", rest, inner)


def _catalogs(rest: _Rest) -> ApiEndpoint | None:
    inner = _narrowed("resources", rest[2:]) if rest[1:2] == ["resources"] else None
    if list(rest[1:]) == ["edges"]:
        inner = ApiEndpoint(entity="edges")
    return _of_node("catalog", "catalogs", rest, inner)


def _of_node(name: str, entity: str, rest: _Rest, inner: ApiEndpoint | None) -> ApiEndpoint | None:
    """Return the endpoint of an entity, of the row of one node, or of what is below that row."""
    if len(rest) < 2:
        return _one(entity, name, "certname", rest)
    node = rest[0]
    parent = Parent(name=name, entity=entity, field="certname", value=node)
    return _child(inner, ("certname", node), parent)


def _environments(rest: _Rest) -> ApiEndpoint | None:
    if len(rest) < 2:
        return _one("environments", "environment", "name", rest)
    environment, inner = rest[0], None
    if rest[1] in ("facts", "resources", "reports", "events"):
        inner = endpoint_of(rest[1:])
    parent = Parent(name="environment", entity="environments", field="name", value=environment)
    return _child(inner, ("environment", environment), parent)


def _reports(rest: _Rest) -> ApiEndpoint | None:
    if not rest:
        return ApiEndpoint(entity="reports")
    parent = Parent(name="report", entity="reports", field="hash", value=rest[0])
    if list(rest[1:]) == ["events"]:
        return _child(_events([]), ("report", rest[0]), parent)
    if len(rest) == 2 and rest[1] in ("logs", "metrics"):
        inner = ApiEndpoint(entity="reports", detail=rest[1], allowed=_ONE)
        return _child(inner, ("hash", rest[0]), parent)
    return None


def _events(rest: _Rest) -> ApiEndpoint | None:
    return None if rest else ApiEndpoint(entity="events", allowed=_TYPICAL | _DISTINCT)


def _one(entity: str, name: str, field: str, rest: _Rest) -> ApiEndpoint:
    """Return the endpoint of all rows, or of the one with the name in the path."""
    if not rest:
        return ApiEndpoint(entity=entity)
    return ApiEndpoint(entity=entity, only=((field, rest[0]),), single=name)


def _child(inner: ApiEndpoint | None, only: tuple[str, Json], parent: Parent) -> ApiEndpoint | None:
    if inner is None:
        return None
    return replace(inner.below(only), parents=(parent, *inner.parents))


_NESTED: dict[str, Callable[[_Rest], ApiEndpoint | None]] = {
    "catalogs": _catalogs,
    "environments": _environments,
    "events": _events,
    "factsets": _factsets,
    "nodes": _nodes,
    "reports": _reports,
}
