"""The queries that answer a request, from its endpoint and its parameters."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.query.ast_form import entity_named, parse_condition
from localpuppet.fleet.inventory.query.client_query import parse_client_query
from localpuppet.fleet.inventory.query.syntax import parse_json
from localpuppet.fleet.inventory.query.tree import (
    Entity,
    Field,
    Select,
    SortOrder,
    conjuncts,
    is_equality,
)
from localpuppet.web.puppetdb.endpoints import ApiEndpoint, Parent
from localpuppet.web.puppetdb.reports.event_counts import EventCounting
from localpuppet.web.puppetdb.request_reading import RequestParameters

# Rows of a query as JSON texts → rows of the answer as JSON texts.
RowShape = Callable[[Iterator[str]], Iterator[str]]
_CLAUSES = (["group_by"], ["order_by"], ["limit"], ["offset"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The queries of a request.

    Attributes:
        total: Whether the rows are counted without limit and offset.
        parents: Queries that must have a row, each with the message if it has none.
        absent: The message if a single row does not exist; empty if the answer is an array.
        shape: Makes the rows of the answer from those of the query; `None` if they are the same.
    """

    select: Select
    total: bool
    parents: tuple[tuple[Select, str], ...]
    absent: str
    shape: RowShape | None = None

    @property
    def is_of_one_node(self) -> bool:
        """Whether it selects whole reports of a node, as the view of a report does."""
        select = self.select
        return (
            select.entity is Entity.REPORTS
            and select.columns is None
            and any(is_equality(condition, "certname") for condition in conjuncts(select.where))
        )


def question_of(endpoint: ApiEndpoint, parameters: RequestParameters) -> Question:
    """Return the queries of a request."""
    entity = entity_named(endpoint.entity) if endpoint.entity else None
    if parameters.counts.get("distinct_resources") in (True, "true"):
        raise InvalidInputError(
            "The query parameter 'distinct_resources' is not supported",
            hint='select the newest reports: ["=", "latest_report?", true]',
        )
    if entity in (Entity.EVENT_COUNTS, Entity.AGGREGATE_EVENT_COUNTS):
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


def _counting(entity: Entity, parameters: RequestParameters) -> Question:
    """Return the question that counts events: its query selects events."""
    paging = {name: value for name, value in parameters.query.items() if name != "query"}
    page = parse_client_query(paging, entity)
    counting = EventCounting.parse(parameters.counts, page.select)
    events = parse_client_query({"query": parameters.query.get("query")}, Entity.EVENTS).select
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


def _sorted(select: Select) -> Select:
    """Return a query in the order that PuppetDB has by default."""
    if select.entity is not Entity.FACT_NAMES or select.order:
        return select
    return replace(select, order=(SortOrder(field=Field(column="name", text="name")),))


def _parent(parent: Parent) -> tuple[Select, str]:
    entity = entity_named(parent.entity)
    columns = (Field(column=parent.field, text=parent.field),)
    where = parse_condition(["=", parent.field, parent.value], entity)
    select = Select(entity=entity, where=where, columns=columns, limit=1)
    return select, _unknown(parent.name, parent.value)


def _unknown(name: str, value: str) -> str:
    return f"No information is known about {name} {value}"
