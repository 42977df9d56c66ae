"""Parse the query parameters of a request to PuppetDB's query API, version 4.

- `/pdb/query/v4` takes PQL, or an array that begins with `from`. An endpoint of an entity, such as
  `/pdb/query/v4/nodes`, takes a condition on its rows, `extract`, or such an array.
- The parameters are strings in a GET request, and JSON values in a POST request.
- Paging in the query itself has priority over the parameters.

Example: `parse_client_query({"query": '["=", "certname", "a"]', "limit": "10"}, Entity.NODES)`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.query.ast_form import parse_array
from localpuppet.fleet.inventory.query.paging import QueryClauses
from localpuppet.fleet.inventory.query.pql import parse_pql
from localpuppet.fleet.inventory.query.syntax import parse_json
from localpuppet.fleet.inventory.query.tree import Entity, Select

# The parameters that this module reads; `include_total` is `true` or `false`.
PARAMETERS = ("query", "limit", "offset", "order_by", "include_total")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuery:
    """The query of a request, and whether the client asks for the number of all rows."""

    select: Select
    total: bool


def parse_client_query(parameters: Mapping[str, Json], entity: Entity | None = None) -> ClientQuery:
    """Parse the parameters of a request.

    Args:
        parameters: The parameters by name; others than `PARAMETERS` are ignored.
        entity: The entity of the endpoint; `None` for `/pdb/query/v4` itself.

    Raises:
        InvalidInputError: A parameter is malformed, or the query uses an unsupported feature.
    """
    select = _select(parameters.get("query"), entity)
    limit, offset = _number(parameters, "limit", 1), _number(parameters, "offset", 0)
    orders = _orders(parameters.get("order_by"))
    clauses = QueryClauses(select.entity)
    for clause in (["limit", limit], ["offset", offset], ["order_by", orders or None]):
        if clause[1] is not None:
            clauses.take(clause)
    paging = clauses.select()
    return ClientQuery(
        select=replace(
            select,
            limit=paging.limit if select.limit is None else select.limit,
            offset=select.offset or paging.offset,
            order=select.order or paging.order,
        ),
        total=parameters.get("include_total") in (True, "true"),
    )


def _select(query: Json, entity: Entity | None) -> Select:
    if isinstance(query, str):
        if entity is None and not query.lstrip().startswith("["):
            return parse_pql(query)
        query = parse_json(query, "query") if query.strip() else None
    if query is None or query == []:
        if entity is None:
            raise InvalidInputError("the parameter 'query' is missing")
        return parse_array(["from", entity.value])
    if not isinstance(query, list):
        raise InvalidInputError("the query is not an array", hint='["=", "certname", "NAME"]')
    if entity is None or query[0] == "from":
        return parse_array(query)
    return parse_array(["from", entity.value, query])


def _number(parameters: Mapping[str, Json], name: str, least: int) -> int | None:
    value = parameters.get(name)
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        value = int(value)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        shown = value if isinstance(value, str) else json.dumps(value)
        expected = "a positive non-zero integer" if least else "a non-negative integer"
        raise InvalidInputError(f"Illegal value '{shown[:40]}' for :{name}; expected {expected}.")
    return value


def _orders(value: Json) -> list[Json]:
    listed = parse_json(value, "order_by") if isinstance(value, str) else value
    if listed is None:
        return []
    orders: list[Json] = []
    for item in listed if isinstance(listed, list) else [listed]:
        known = isinstance(item, dict) and "field" in item and not item.keys() - {"field", "order"}
        if not isinstance(item, dict) or not known:
            raise InvalidInputError(
                "Illegal value for :order_by; expected an array of maps",
                hint='[{"field": "certname", "order": "desc"}]',
            )
        order = item.get("order") or "asc"
        orders.append([item["field"], order.lower() if isinstance(order, str) else order])
    return orders
