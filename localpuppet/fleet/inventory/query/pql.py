"""Parse what clients ask: `inventory[certname] { facts.os.family = "Debian" }`, and parameters.

- PQL is converted into PuppetDB's AST form, as in PuppetDB. The grammar follows
  https://www.puppet.com/docs/puppetdb/7/api/query/v4/pql.html. Lark parses it ([ADR
  23](docs/adr/0023-queries.md)).
- In PuppetDB's query API, version 4, `/pdb/query/v4` takes PQL, or an array that begins with
  `from`. An endpoint of an entity, such as `/pdb/query/v4/nodes`, takes a condition on its rows,
  `extract`, or such an array.
- Parameters are strings in a GET request, and JSON values in a POST request.
- Parameters have priority over paging in the query itself, as in PuppetDB.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.values import Json, type_names
from localpuppet.base.value import Value
from localpuppet.fleet.inventory.query.ast_form import QueryClauses, parse_array
from localpuppet.fleet.inventory.query.syntax import check_text, parse_json, parsed, with_operators
from localpuppet.fleet.inventory.query.tree import CONTRARIES, OPERATORS, Entity, Select

if TYPE_CHECKING:
    from lark import Lark, Token, Tree

GRAMMAR = r"""
start: from
from: NAME [projection] "{" [or] [group] paging* "}"
projection: "[" [shown ("," shown)*] "]"
?shown: field | function
function: FUNCTION "(" [argument ("," argument)*] ")"
?argument: field | text

?or: and ("or" and)*
?and: not ("and" not)*
?not: negated | primary
negated: ("!" | "not") not
?primary: "(" or ")" | compared | null | member | related
related: NAME "{" [or] "}"
compared: field OPERATOR literal
member: (field | grouped) "in" (from | list)
grouped: "[" field ("," field)* "]"
null: field "is" [NOT_NULL] "null"

group: "group" "by" shown ("," shown)*
paging: "limit" INTEGER -> limit
      | "offset" INTEGER -> offset
      | "order" "by" ordered ("," ordered)* -> order
ordered: shown [DIRECTION]

field: FIELD | NAME
list: "[" [literal ("," literal)*] "]"
?literal: text | number | boolean | list
text: DOUBLE | SINGLE
number: INTEGER | REAL
boolean: TRUE | FALSE

FUNCTION.2: /(?:count|avg|sum|min|max|to_string)(?=\s*\()/
NOT_NULL.3: /not\b/
DIRECTION.3: /(?:asc|desc)\b/
TRUE.2: /true\b/
FALSE.2: /false\b/
FIELD.2: /(?:facts|trusted|parameters)/ PART+
PART: /\.(?:"(?:[^"\\]|\\.)*"|match\("(?:[^"\\]|\\.)*"\)|[^\s.",()\[\]{}SIGNS]+(?:\[[0-9]+\])*)/
NAME: /[a-zA-Z_][a-zA-Z0-9_]*\??/
REAL.2: /-?[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?/
INTEGER: /-?[0-9]+/
DOUBLE: /"(?:[^"\\]|\\.)*"/s
SINGLE: /'(?:[^'\\]|\\.)*'/s
%ignore /\s+/
"""
MAX_DIGITS = 20
# The parameters that this module reads; `include_total` is `true` or `false`.
PARAMETERS = ("query", "limit", "offset", "order_by", "include_total")


def parse_query(query: Json) -> Select:
    """Parse a query: PQL as a string, or PuppetDB's AST form as an array."""
    if isinstance(query, str) and query.lstrip().startswith("["):
        query = parse_json(query, "query")
    if isinstance(query, str):
        return parse_pql(query)
    if isinstance(query, list):
        return parse_array(query)
    raise InvalidInputError(
        f"a query must be a string or an array, not a {type_names[type(query)]}",
        hint="write PQL: 'nodes[certname] { }'",
    )


def parse_pql(text: str) -> Select:
    """Parse a PQL query."""
    return parse_array(to_array(text))


def to_array(text: str) -> list[Json]:
    """Convert a PQL query into PuppetDB's AST form."""
    check_text(text)
    if not text.strip():
        raise InvalidInputError("the query is empty", where="PQL", hint="nodes { }")
    return _from(parsed(_parser(), text, what="PQL"))


class ClientQuery(Value):
    """The query of a request, and whether the client asks for the number of all rows."""

    select: Select
    total: bool


def parse_client_query(parameters: Mapping[str, Json], entity: Entity | None = None) -> ClientQuery:
    """Parse the parameters of a request, others than `PARAMETERS` ignored.

    `entity` is that of the endpoint; `None` for `/pdb/query/v4` itself.
    """
    select = _selected(parameters.get("query"), entity)
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
            limit=select.limit if limit is None else paging.limit,
            offset=select.offset if offset is None else paging.offset,
            order=paging.order or select.order,
        ),
        total=parameters.get("include_total") in (True, "true"),
    )


@cache
def _parser() -> "Lark":
    from lark import Lark  # 45 ms, and as much for the grammar: for who asks in PQL only

    return Lark(with_operators(GRAMMAR, OPERATORS), parser="lalr", maybe_placeholders=True)


def _from(tree: "Tree[Token]") -> list[Json]:
    if tree.data == "start":
        return _from(_tree(tree.children[0]))
    parts: list[Any] = tree.children
    entity, projection, where, group, *paging = parts
    query: list[Json] = ["from", str(entity)]
    condition: list[Json] = [] if where is None else [_condition(where)]
    grouped: list[Json] = [] if group is None else [["group_by", *_shown(group.children)]]
    if projection is None:
        query += [*condition, *grouped]
    else:
        query.append(["extract", _shown(projection.children), *condition, *grouped])
    return [*query, *map(_paging, paging)]


def _tree(value: "Tree[Token] | Token") -> "Tree[Token]":
    return cast("Tree[Token]", value)


def _shown(children: list[Any]) -> list[Json]:
    shown: list[Json] = []
    for child in children:
        if child is None:
            continue
        if child.data == "function":
            name, *arguments = [part for part in child.children if part is not None]
            shown.append(["function", str(name), *map(_argument, arguments)])
        else:
            shown.append(_field(child))
    return shown


def _argument(tree: "Tree[Token]") -> Json:
    return _field(tree) if tree.data == "field" else _literal(tree)


def _field(tree: "Tree[Token]") -> str:
    return str(tree.children[0])


def _paging(tree: "Tree[Token]") -> list[Json]:
    if tree.data != "order":
        return [str(tree.data), _integer(str(tree.children[0]))]
    orders: list[Json] = []
    for child in map(_tree, tree.children):
        both: list[Any] = child.children
        shown, direction = both
        (name,) = _shown([shown])
        if isinstance(name, list):
            name = name[1]  # the name of count() in the result
        orders.append(name if direction is None else [name, str(direction)])
    return ["order_by", orders]


def _condition(tree: "Tree[Token]") -> list[Json]:
    parts: list[Any] = tree.children
    if tree.data in ("or", "and"):
        return [str(tree.data), *map(_condition, parts)]
    if tree.data == "negated":
        return ["not", _condition(parts[0])]
    if tree.data == "related":
        where: list[Json] = [] if parts[1] is None else [_condition(parts[1])]
        return ["subquery", str(parts[0]), *where]
    if tree.data == "null":
        return ["null?", _field(parts[0]), parts[1] is None]
    if tree.data == "member":
        left, right = parts
        fields: Json = _field(left) if left.data == "field" else [*map(_field, left.children)]
        values: Json = _from(right) if right.data == "from" else ["array", _literal(right)]
        return ["in", fields, values]
    field, operator, value = parts
    name, literal = str(operator), _literal(value)
    if name in CONTRARIES:
        return ["not", [CONTRARIES[name].value, _field(field), literal]]
    return [name, _field(field), literal]


def _literal(tree: "Tree[Token]") -> Json:
    if tree.data == "list":
        return [_literal(_tree(child)) for child in tree.children if child is not None]
    text = str(tree.children[0])
    if tree.data == "text":
        return _unquoted(text)
    if tree.data == "number":
        return float(text) if "." in text else _integer(text)
    return text == "true"


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise InvalidInputError(f"a number has more than {MAX_DIGITS} characters", where="PQL")
    return int(text)


def _unquoted(text: str) -> str:
    """Return a string: JSON in double quotes; in single quotes only a quote is escaped."""
    if text.startswith("'"):
        return text[1:-1].replace("\\'", "'")
    escaped = text.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
    try:
        unquoted = str(loads(escaped))
        unquoted.encode()
        return unquoted
    except ValueError as error:  # also for a lone surrogate
        raise InvalidInputError(
            "a string has an escape that JSON does not know",
            where="PQL",
            hint=r"write \\ for a backslash, or use single quotes",
        ) from error


def _selected(query: Json, entity: Entity | None) -> Select:
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
