"""Parse PuppetDB's AST queries, `["from", "nodes", ["=", "certname", "a"]]`.

- PQL is converted into this form first, as in PuppetDB:
  https://www.puppet.com/docs/puppetdb/7/api/query/v4/ast.html
- An unsupported operator or entity is rejected by name. Nothing is ignored.
- A part of a field may be quoted; an index is in brackets.
- In a condition, `match("[0-9]+")` selects every key and index whose whole text matches. PuppetDB
  searches its expression in the joined path instead, and advises against it.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.values import Json, type_names
from localpuppet.fleet.inventory.query import tree
from localpuppet.fleet.inventory.query.comparing import is_plain_number, parse_instant
from localpuppet.fleet.inventory.query.query_limits import (
    MAX_FIELDS,
    MAX_PATH_STEPS,
    MAX_QUERY_VALUES,
)
from localpuppet.fleet.inventory.query.syntax import check_values
from localpuppet.node.puppet.fault import LEFT_OUT, is_public_title

_KNOWN = {entity.value: entity for entity in tree.Entity}
_UNANSWERED = {
    "packages": "packages are not in the inventory",
    "package_inventory": "packages are not in the inventory",
    "catalog_inputs": "localpuppet does not record the inputs of a catalog",
    "catalog_input_contents": "localpuppet does not record the inputs of a catalog",
}
TITLE = "resource_title"
# Texts that a column with booleans takes, too.
_BOOLEANS = {"true": True, "false": False}
_OF_ANY_TYPE = tree.NESTED.union(tree.LISTS, (tree.TAG, tree.PARAMETER))
_STATES = ("active", "inactive")
_ANY_STATE = tree.OneOf(field=tree.Field(column=tree.NODE_STATE), values=_STATES)


def parse_array(query: Sequence[Json]) -> tree.Select:
    """Parse an array that starts with `from`."""
    check_values(query)
    if not query or query[0] != "from":
        raise InvalidInputError(
            "the query does not begin with 'from'", hint='write ["from", "nodes", [...]]'
        )
    return _from(query)


def parse_condition(query: Json, entity: tree.Entity) -> tree.Condition:
    """Parse a condition on rows of an entity; reject what is malformed or not supported."""
    check_values(query)
    return tree.check_size(_condition(query, entity))


def entity_named(name: Json) -> tree.Entity:
    """Return the entity with a name; reject one that is unsupported or unknown."""
    if isinstance(name, str) and name in _UNANSWERED:
        raise InvalidInputError(f"{name} is not supported: {_UNANSWERED[name]}")
    if isinstance(name, str) and name in _KNOWN:
        return _KNOWN[name]
    shown = repr(name[:40]) if isinstance(name, str) else f"a {type_names[type(name)]}"
    raise InvalidInputError(f"{shown} is not an entity", hint=f"ask {', '.join(sorted(_KNOWN))}")


def _from(query: Sequence[Json]) -> tree.Select:
    if len(query) < 2:
        raise InvalidInputError("'from' has no entity")
    entity = entity_named(query[1])
    clauses = QueryClauses(entity)
    where: tree.Condition | None = None
    for part in query[2:]:
        if not isinstance(part, list) or not part:
            raise InvalidInputError("'from' has an argument that is not an array")
        if clauses.take(part):
            continue
        if where is not None or clauses.filter is not None:
            raise InvalidInputError("'from' has two conditions", hint="use 'and'")
        where = tree.check_size(_condition(part, entity))
    if clauses.filter is not None:
        where = tree.check_size(_condition(clauses.filter, entity))
    return clauses.select(tree.ALL if where is None else where)


def _condition(query: Json, entity: tree.Entity) -> tree.Condition:
    if not isinstance(query, list) or not query or not isinstance(query[0], str):
        raise InvalidInputError("a condition must be an array with an operator")
    name, arguments = query[0].lower(), query[1:]
    if name in ("and", "or"):
        parts = tuple(_condition(part, entity) for part in arguments)
        if not parts:
            raise InvalidInputError(f"{name!r} has no conditions")
        # PuppetDB leaves out conditions for any type or state, in `or` and `not` too.
        parts = tuple(part for part in parts if part != tree.ALL)
        return _or(parts) if name == "or" and parts else tree.And(parts=parts)
    if name == "not":
        (part,) = _exactly(arguments, 1, "not")
        condition = _condition(part, entity)
        if isinstance(condition, tree.Not) and condition.part != tree.ALL:
            return condition.part  # also for a missing fact, whose comparisons are false
        return condition if condition in (tree.ALL, _ANY_STATE) else tree.Not(part=condition)
    if name == "null?":
        field, wanted = _exactly(arguments, 2, "null?")
        if not isinstance(wanted, bool):
            raise InvalidInputError("'null?' requires true or false")
        return tree.IsNull(field=_field(field, entity), wanted=wanted)
    if name == "in":
        fields, values = _exactly(arguments, 2, "in")
        return _in(fields, values, entity)
    if name == "subquery":
        return _subquery(arguments, entity)
    return _comparison(name, _exactly(arguments, 2, name), entity)


def _or(parts: tuple[tree.Condition, ...]) -> tree.Condition:
    """Return an alternative; if all parts name a node, they are one list, as long as `in` allows.

    Bolt sends a condition for each of its targets. A condition for any state is about all parts.
    """
    if _ANY_STATE in parts:
        others = tuple(part for part in parts if part != _ANY_STATE)
        return tree.And(parts=(_ANY_STATE, _or(others))) if others else _ANY_STATE
    names = [
        part.value
        for part in parts
        if tree.is_equality(part, "certname") and isinstance(part.value, str)
    ]
    if len(names) < len(parts) or len(names) > MAX_QUERY_VALUES:
        return tree.Or(parts=parts)
    return tree.OneOf(field=tree.CERTNAME, values=tuple(names))


def _exactly(arguments: Sequence[Json], count: int, name: str) -> Sequence[Json]:
    if len(arguments) != count:
        raise InvalidInputError(f"{name[:40]!r} has {len(arguments)} arguments, not {count}")
    return arguments


def _comparison(name: str, arguments: Sequence[Json], entity: tree.Entity) -> tree.Condition:
    try:
        operator = tree.Operator(name)
    except ValueError:
        raise InvalidInputError(f"the operator {name[:40]!r} is unknown") from None
    left, value = arguments
    if operator is tree.Operator.EQUAL and left in (["node", "active"], "node_state"):
        return _of_state(value, entity)
    if entity is tree.Entity.REPORTS and [name, left, value] == ["=", "type", "any"]:
        return tree.ALL
    fact = _named_fact(left, entity)
    if fact is not None:
        return _of_fact(fact, lambda field: _test(field, operator, value))
    field = _field(left, entity, several=value is not None)
    return _test(field, operator, value)


def _of_state(value: Json, entity: tree.Entity) -> tree.Condition:
    wanted = {"true": "active", "false": "inactive"}.get(str(value).lower(), value)
    if wanted not in (*_STATES, "any"):
        raise InvalidInputError("the field node_state is 'active', 'inactive' or 'any'")
    if entity in (tree.Entity.REPORTS, tree.Entity.EVENTS):
        return _ANY_STATE if wanted == "any" else replace(_ANY_STATE, values=(wanted,))
    # Forgotten nodes are not in the inventory: every node is active.
    if wanted == "any":
        return tree.ALL
    # "active" is a condition that all nodes meet, and is not left out as that for any state is.
    return tree.Not(part=tree.ALL if wanted == "inactive" else tree.Not(part=tree.ALL))


def _test(field: tree.Field, operator: tree.Operator, value: Json) -> tree.Condition:
    column = field.column
    if column == TITLE and operator is tree.Operator.EQUAL:
        _check_title(value)
    if value is None and operator is tree.Operator.EQUAL:
        return tree.IsNull(field=field, wanted=True)
    if (
        column != tree.PARAMETER or operator is not tree.Operator.EQUAL
    ):  # otherwise hashes compare too
        _check_value(operator, value)
    if operator is tree.Operator.PATH_MATCH and column != "path":
        raise InvalidInputError("'~>' compares the field path only")
    if column in tree.TIMES and not operator.is_of_text:
        return tree.Compare(
            field=field, operator=operator, value=tree.TimeValue(parse_instant(value))
        )
    if operator in tree.ORDERS and not (
        is_plain_number(value) and column in tree.NUMBERS | tree.NESTED
    ):
        raise InvalidInputError(
            f"{operator.value} compares the field {field.text} with numbers or times only"
        )
    if operator is tree.Operator.EQUAL or column in tree.NUMBERS:
        value = _of_type(field, value)
    return tree.Compare(field=field, operator=operator, value=value)


def _of_type(field: tree.Field, value: Json, *, is_one: bool = False) -> Json:
    """Return a value that a field may have; reject one that it never has.

    One of several for a text may be a number, as in PuppetDB: it equals no text.
    """
    column = field.column
    if column in tree.BOOLEANS:
        value = _BOOLEANS.get(value, value) if isinstance(value, str) else value
        known, wanted = isinstance(value, bool), "true or false"
    elif column in tree.NUMBERS:
        known, wanted = column == "value" or is_plain_number(value), "a number"
    elif column == "path":
        known, wanted = isinstance(value, list) and all(map(_is_step, value)), "a list of steps"
    else:
        known = isinstance(value, str) or column in _OF_ANY_TYPE
        known = known or (is_one and isinstance(value, int | float))
        wanted = "a string"
    if not known:
        raise InvalidInputError(f"the field {column} compares with {wanted}")
    return value


def _is_step(value: Json) -> bool:
    return isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool))


def _check_title(value: Json) -> None:
    """Reject a title that events do not have: it would look like a resource without events."""
    if isinstance(value, str) and not (value.startswith(LEFT_OUT) or is_public_title(value)):
        raise InvalidInputError(
            f"the title {one_line(value)[:60]!r} stays on its node: it may be a command",
            where=TITLE,
            hint="select by resource_type, file, line or containing_class",
        )


def _check_value(operator: tree.Operator, value: Json) -> None:
    if operator.is_of_text and not isinstance(value, str):
        raise InvalidInputError(f"'{operator.value}' compares with a string")
    if isinstance(value, dict):
        raise InvalidInputError(f"'{operator.value}' compares with a mapping")


def _of_fact(name: str, test: Callable[[tree.Field], tree.Condition]) -> tree.Condition:
    """Return a condition on a fact: of that name, or at that place of a structured fact."""
    first, *rest = name.split(".")
    places = [(name, ()), (first, tuple(map(tree.parse_step, rest)))]
    parts: list[tree.Condition] = [
        tree.And(
            parts=(
                tree.equal("name", fact),
                test(tree.Field(column="value", path=path, text="value")),
            )
        )
        for fact, path in places[: 2 if rest else 1]
    ]
    where = parts[0] if len(parts) == 1 else tree.Or(parts=tuple(parts))
    return tree.related(tree.Entity.FACTS, where)


def _named_fact(left: Json, entity: tree.Entity) -> str | None:
    """Return the name in `["fact", NAME]`, which any entity with nodes supports."""
    if not isinstance(left, list) or not left or left[0] != "fact":
        return None
    if len(left) != 2 or not isinstance(left[1], str):
        raise InvalidInputError("'fact' requires a fact name")
    tree.check_column(entity, "certname")
    return left[1]


def _field(left: Json, entity: tree.Entity, *, several: bool = False) -> tree.Field:
    if isinstance(left, list) and left[:1] == ["parameter"] and len(left) == 2:
        tree.check_column(entity, "parameters")
        name = str(left[1])
        return tree.Field(column=tree.PARAMETER, path=(name,), text=f"parameters.{name}")
    if not isinstance(left, str):
        raise InvalidInputError("a field must be a string")
    field = parse_field(left, entity, several=several)
    tree.check_in_condition(entity, field.column)
    return field


def _in(left: Json, values: Json, entity: tree.Entity) -> tree.Condition:
    if not isinstance(values, list) or not values:
        raise InvalidInputError("'in' requires an array, 'from' or 'extract'")
    if values[0] == "array":
        (listed,) = _exactly(values[1:], 1, "array")
        if not isinstance(listed, list) or len(listed) > MAX_QUERY_VALUES:
            raise InvalidInputError(f"'array' requires a list of at most {MAX_QUERY_VALUES}")
        fact = _named_fact(left, entity)
        if fact is not None:
            return _of_fact(fact, lambda field: tree.OneOf(field=field, values=tuple(listed)))
        names = left[0] if isinstance(left, list) and len(left) == 1 else left
        field = _field(names, entity)
        if field.column in tree.LISTS:
            raise InvalidInputError(f"'in' does not compare the list {field.column}", hint="use =")
        if field.column in tree.TIMES:
            tests = (_test(field, tree.Operator.EQUAL, item) for item in listed)
            return tree.check_size(tree.Or(parts=tuple(tests)))
        if field.column == TITLE:
            for item in listed:
                _check_title(item)
        typed = (item if item is None else _of_type(field, item, is_one=True) for item in listed)
        return tree.OneOf(field=field, values=tuple(typed))
    fields = plain_fields(left, entity)
    return tree.InSelect(fields=fields, select=_inner_select(values))


def _inner_select(query: Sequence[Json]) -> tree.Select:
    if query[0] == "from":
        select = _from(query)
    elif query[0] == "extract" and len(query) == 3 and isinstance(query[2], list) and query[2]:
        name, *rest = query[2]
        if not isinstance(name, str) or not name.startswith("select_"):
            raise InvalidInputError("'extract' in 'in' requires select_ENTITY")
        entity = entity_named(name.removeprefix("select_"))
        where = _condition(rest[0], entity) if rest else tree.ALL
        columns = fields_of(query[1], entity)
        select = tree.Select(entity=entity, where=tree.check_size(where), columns=columns)
    else:
        raise InvalidInputError("'in' requires an array, 'from' or 'extract'")
    if select.columns is None:
        raise InvalidInputError("a query after 'in' must name a field")
    return select


def _subquery(arguments: Sequence[Json], entity: tree.Entity) -> tree.Condition:
    if not 1 <= len(arguments) <= 2:
        raise InvalidInputError("'subquery' requires an entity and a condition")
    other = entity_named(arguments[0])
    columns, others = tree.related_columns(entity, other)
    where = _condition(arguments[1], other) if len(arguments) == 2 else tree.ALL
    return tree.related(other, tree.check_size(where), columns, others)


# A quoted part ends at a quote before a dot or the end.
_PART = re.compile(r'\.(?:"((?:[^"\\]|\\.|"(?!\.|\Z))*)"|([^."\[\]]+))((?:\[[0-9]{1,6}\])*)')
_MATCH = re.compile(r'\.match\("(.*?)(?<!\\)"\)(?=\.|\Z)')


def parse_field(text: str, entity: tree.Entity, *, several: bool = False) -> tree.Field:
    """Parse a field of an entity; `match()` may select several values only with `several`."""
    column, dot, _ = text.partition(".")
    tree.check_column(entity, column)
    if not dot:
        return tree.Field(column=column, text=text)
    if column not in tree.NESTED:
        raise InvalidInputError(f"the field {column} has no parts")
    path: list[tree.Step] = []
    place = len(column)
    while place < len(text):
        matching = _MATCH.match(text, place)
        part = matching or _PART.match(text, place)
        if part is None or len(path) > MAX_PATH_STEPS:
            raise InvalidInputError(
                f"the field {text[:60]!r} is malformed",
                hint='facts.a.b, facts.a[0], facts."a.b".c',
            )
        if matching is not None and not several:
            raise InvalidInputError("'match()' is supported in comparisons only")
        if matching is not None:
            path.append(tree.Pattern(matching[1]))
        else:  # a number is an index of a list or a key of a hash, also with quotes
            path.append(tree.parse_step(part[1] if part[1] is not None else part[2]))
            path.extend(int(index) for index in re.findall(r"[0-9]+", part[3]))
        place = part.end()
    return tree.Field(column=column, path=tuple(path), text=text)


# No answer has more rows.
MAX_COUNT = 1_000_000_000
_OF_NUMBERS = (tree.AggregateFunction.SUM, tree.AggregateFunction.AVERAGE)
_FUNCTIONS = {item.value: item for item in tree.AggregateFunction}


class QueryClauses:
    """The clauses of one `from`."""

    def __init__(self, entity: tree.Entity) -> None:
        self._entity = entity
        self._seen: set[str] = set()
        self._select = tree.Select(entity=entity)
        self.filter: Json = None

    def take(self, part: Sequence[Json]) -> bool:
        """Take a part of `from` if it is a clause, and return whether it is."""
        name, arguments = part[0], part[1:]
        if name not in ("extract", "limit", "offset", "order_by", "group_by"):
            return False
        if str(name) in self._seen:
            raise InvalidInputError(f"there are two {name!r}")
        self._seen.add(str(name))
        if name == "extract":
            self._extract(arguments)
        elif name == "group_by":
            self._set(group_by=plain_fields(list(arguments), self._entity))
        elif name == "order_by":
            self._set(order=self._orders(arguments))
        else:
            number = arguments[0] if len(arguments) == 1 else None
            if not isinstance(number, int) or isinstance(number, bool) or number < 0:
                raise InvalidInputError(f"{name!r} requires a number")
            self._set(**{str(name): min(number, MAX_COUNT)})
        return True

    def select(self, where: tree.Condition = tree.ALL) -> tree.Select:
        select = replace(self._select, where=where)
        columns = select.columns or ()
        grouped = {field.text for field in select.group_by}
        loose = [
            column.text
            for column in columns
            if isinstance(column, tree.Field) and column.text not in grouped
        ]
        called = [column.function for column in columns if isinstance(column, tree.Aggregate)]
        twice = next((item for item in called if called.count(item) > 1), None)
        if twice is not None:
            raise InvalidInputError(
                f"the result has {twice.value}() twice", hint="a result has one key per function"
            )
        if loose and (called or select.group_by):
            raise InvalidInputError(
                f"the field {loose[0]} is neither grouped nor counted", hint=f"group by {loose[0]}"
            )
        if select.group_by and select.columns is None:
            raise InvalidInputError("'group by' needs the fields of the result")
        results = {*grouped, *(item.value for item in called)}
        needed = [
            criterion.field.text
            for criterion in select.order
            if called or criterion.field.column in _FUNCTIONS
        ]
        unknown = next((text for text in needed if text not in results), None)
        if unknown is not None:
            raise InvalidInputError(f"'order_by' names {unknown}, which the result does not have")
        return select

    def _set(self, **fields: Any) -> None:  # noqa: ANN401 - of `Select`
        self._select = replace(self._select, **fields)

    def _extract(self, arguments: Sequence[Json]) -> None:
        if not arguments:
            raise InvalidInputError("'extract' names no fields")
        if arguments[0] != []:  # all columns, as without `extract`
            self._set(columns=fields_of(arguments[0], self._entity))
        for part in arguments[1:]:
            if isinstance(part, list) and part[:1] == ["group_by"]:
                self.take(part)
            elif self.filter is None:
                self.filter = part
            else:
                raise InvalidInputError("'extract' has two conditions")

    def _orders(self, arguments: Sequence[Json]) -> tuple[tree.SortOrder, ...]:
        listed = arguments[0] if len(arguments) == 1 else None
        if not isinstance(listed, list) or not 0 < len(listed) <= MAX_FIELDS:
            raise InvalidInputError("'order_by' requires a list of fields")
        orders = []
        for item in listed:
            name, direction = (item, "asc") if isinstance(item, str) else _pair(item)
            if not isinstance(name, str) or direction not in ("asc", "desc"):
                raise InvalidInputError(
                    "'order_by' requires fields, or pairs of a field and asc or desc"
                )
            if name in _FUNCTIONS:
                field = tree.Field(column=name, text=name)
            else:
                field = parse_field(name, self._entity)
            orders.append(tree.SortOrder(field=field, descending=direction == "desc"))
        return tuple(orders)


def _pair(value: Json) -> tuple[Json, Json]:
    if isinstance(value, list) and len(value) == 2:
        return value[0], value[1]
    return (value[0] if isinstance(value, list) and len(value) == 1 else None), "asc"


def plain_fields(names: Json, entity: tree.Entity) -> tuple[tree.Field, ...]:
    """Parse one field name or a list of them."""
    fields = fields_of(names, entity)
    plain = tuple(field for field in fields if isinstance(field, tree.Field))
    if len(plain) != len(fields):
        raise InvalidInputError("a function is not allowed here")
    return plain


def fields_of(names: Json, entity: tree.Entity) -> tuple[tree.Field | tree.Aggregate, ...]:
    """Parse the columns of a result from one name or a list of names and functions."""
    listed = names if isinstance(names, list) and names[:1] != ["function"] else [names]
    if not 0 < len(listed) <= MAX_FIELDS:
        raise InvalidInputError(f"there must be 1 to {MAX_FIELDS} fields")
    fields: list[tree.Field | tree.Aggregate] = []
    for item in listed:
        if isinstance(item, str):
            field = parse_field(item, entity)
            tree.check_in_result(entity, field.column)
            fields.append(field)
        elif isinstance(item, list) and item[:1] == ["function"]:
            fields.append(_function(item[1:], entity))
        else:
            raise InvalidInputError("a field must be a string")
    return tuple(fields)


def _function(arguments: Sequence[Json], entity: tree.Entity) -> tree.Aggregate:
    name = arguments[0] if arguments else None
    function = _FUNCTIONS.get(name) if isinstance(name, str) else None
    if function is None:
        shown = repr(name[:40]) if isinstance(name, str) else "without a name"
        raise InvalidInputError(
            f"the function {shown} is not supported", hint=f"use {', '.join(_FUNCTIONS)}"
        )
    if len(arguments) > 2 or (len(arguments) == 1 and function is not tree.AggregateFunction.COUNT):
        raise InvalidInputError(f"{name}() has {len(arguments) - 1} arguments")
    if len(arguments) == 1:
        return tree.Aggregate(function=function, field=None)
    (field,) = plain_fields(arguments[1], entity)
    if function in _OF_NUMBERS and field.column not in tree.NUMBERS:
        raise InvalidInputError(f"{name}() requires a field with numbers, not {field.text}")
    return tree.Aggregate(function=function, field=field)
