"""Parse the fields and clauses of a query besides its condition.

- A part may be quoted; an index is in brackets.
- In a condition, `match("[0-9]+")` selects every key and index whose whole text matches. PuppetDB
  searches its expression in the joined path instead, and advises against it.
"""

import re
from collections.abc import Sequence

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.query import tree
from localpuppet.fleet.inventory.query.query_limits import MAX_FIELDS, MAX_PATH_STEPS

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
        else:
            path.append(part[1] if part[1] is not None else part[2])
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
        self._columns: tuple[tree.Field | tree.Aggregate, ...] | None = None
        self._group_by: tuple[tree.Field, ...] = ()
        self._order: tuple[tree.SortOrder, ...] = ()
        self._limit: int | None = None
        self._offset = 0
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
            self._group_by = plain_fields(list(arguments), self._entity)
        elif name == "order_by":
            self._order = self._orders(arguments)
        else:
            number = arguments[0] if len(arguments) == 1 else None
            if not isinstance(number, int) or isinstance(number, bool) or number < 0:
                raise InvalidInputError(f"{name!r} requires a number")
            if name == "limit":
                self._limit = min(number, MAX_COUNT)
            else:
                self._offset = min(number, MAX_COUNT)
        return True

    def select(self, where: tree.Condition = tree.ALL) -> tree.Select:
        """Return the query."""
        columns = self._columns or ()
        grouped = {field.text for field in self._group_by}
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
        if loose and (called or self._group_by):
            raise InvalidInputError(
                f"the field {loose[0]} is neither grouped nor counted", hint=f"group by {loose[0]}"
            )
        if self._group_by and self._columns is None:
            raise InvalidInputError("'group by' needs the fields of the result")
        results = {*grouped, *(item.value for item in called)}
        needed = [
            criterion.field.text
            for criterion in self._order
            if called or criterion.field.column in _FUNCTIONS
        ]
        unknown = next((text for text in needed if text not in results), None)
        if unknown is not None:
            raise InvalidInputError(f"'order_by' names {unknown}, which the result does not have")
        return tree.Select(
            entity=self._entity,
            where=where,
            columns=self._columns,
            group_by=self._group_by,
            order=self._order,
            limit=self._limit,
            offset=self._offset,
        )

    def _extract(self, arguments: Sequence[Json]) -> None:
        if not arguments:
            raise InvalidInputError("'extract' names no fields")
        if arguments[0] != []:  # all columns, as without `extract`
            self._columns = fields_of(arguments[0], self._entity)
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
