"""Derive hints from a condition: what every node or row of an answer must have.

- A hint never excludes a matching node; if that is uncertain, there is no hint.
"""

from collections.abc import Collection
from typing import Protocol

from localpuppet.base.formats.strict_json import loads_again
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.query.columns import LISTS, NESTED, OF_REPORTS, PARAMETER, TAG
from localpuppet.fleet.inventory.query.comparing import number_in
from localpuppet.fleet.inventory.query.node_facts import may_be_derived
from localpuppet.fleet.inventory.query.records import RecordHint
from localpuppet.fleet.inventory.query.resource_scope import columns_of
from localpuppet.fleet.inventory.query.tree import (
    Aggregate,
    AggregateFunction,
    Compare,
    Condition,
    Entity,
    InSelect,
    Loose,
    OneOf,
    Operator,
    Or,
    Select,
    TimeValue,
    VersionValue,
    conjuncts,
    is_grouped,
)
from localpuppet.fleet.inventory.reading import Scalar

_NOT_LISTED = LISTS | NESTED | {TAG, PARAMETER, "role"}
_FROM = (Operator.EQUAL, Operator.GREATER, Operator.AT_LEAST)
_UP_TO = (Operator.EQUAL, Operator.LESS, Operator.AT_MOST)


class Subqueries(Protocol):
    """Evaluates the subqueries of a condition."""

    def values(self, condition: InSelect) -> Collection[tuple[str, ...]]:
        """Return the rows of a subquery, each as a tuple with its values as JSON texts."""
        ...

    def see(self) -> None:
        """Count a row that the condition looks at."""
        ...


def necessary(select: Select) -> dict[str, Collection[Scalar]]:
    """Return sets of values, one of which must match, by `node`, `role` or dotted fact path."""
    found: dict[str, Collection[Scalar]] = {}
    for condition in conjuncts(select.where):
        if not isinstance(condition, Compare | OneOf):
            continue
        if isinstance(condition, Compare):
            path = _place(condition, select.entity)
            values = _values(condition)
        else:
            path = "node" if condition.field.column == "certname" else None
            values = [one for one in condition.values if isinstance(one, str | int | float)]
        if path is not None and values:
            found.setdefault(path, values)
    return found


def fact_names(entity: Entity, where: Condition) -> frozenset[str] | None:
    """Return the fact names that can match in rows of facts; `None` for all."""
    if entity not in (Entity.FACTS, Entity.FACT_CONTENTS):
        return None
    for condition in conjuncts(where):
        if isinstance(condition, OneOf) and condition.field.column == "name":
            return frozenset(one for one in condition.values if isinstance(one, str))
        if not isinstance(condition, Compare) or condition.operator is not Operator.EQUAL:
            continue
        value = condition.value
        if condition.contrary:
            continue
        if condition.field.column == "name" and isinstance(value, str):
            return frozenset({value})
        if condition.field.column == "path" and isinstance(value, list) and value:
            return frozenset({str(value[0])})
    return None


def named_nodes(select: Select, subqueries: Subqueries) -> set[str] | None:
    """Return node names from a subquery, one of which must match; `None` without such a one."""
    for condition in conjuncts(select.where):
        if isinstance(condition, InSelect) and [one.column for one in condition.fields] == [
            "certname"
        ]:
            return {str(loads_again(name.encode())) for (name,) in subqueries.values(condition)}
    return None


def record_hint(select: Select, subqueries: Subqueries, *, total: bool = False) -> RecordHint:
    """Return what a source of rows may use to read less.

    Args:
        select: The query.
        subqueries: Evaluates subqueries.
        total: Whether the query needs the number of all rows.
    """
    equal: dict[str, Collection[Json]] = {}
    since: dict[str, int] = {}
    until: dict[str, int] = {}
    # Rows of nodes are completed by entries before the condition applies.
    is_joined = select.entity is Entity.NODES
    exact = not is_joined
    for condition in conjuncts(select.where):
        column, values = _listed(condition, subqueries)
        if is_joined and column not in ("certname", *OF_REPORTS):
            continue
        if column and column not in equal:
            equal[column] = values
            continue
        if not isinstance(condition, Compare) or not isinstance(condition.value, TimeValue):
            exact = False
            continue
        column, moment, operator = condition.field.column, condition.value, condition.operator
        if operator in _FROM:
            # Rows have whole milliseconds.
            first = _after(moment) if operator is Operator.GREATER else _before(moment) + 1
            since[column] = max(first, since.get(column, first))
        if operator in _UP_TO:
            last = _before(moment) if operator is Operator.LESS else _after(moment) - 1
            until[column] = min(last, until.get(column, last))
    is_paged = not is_joined and not is_grouped(select)
    return RecordHint(
        equal=equal,
        since=since,
        until=until,
        exact=exact,
        columns=columns_of(select),
        order=select.order if is_paged else (),
        limit=select.limit if is_paged else None,
        offset=select.offset if is_paged else 0,
        total=total and is_paged,
        count_by=None if is_joined else _count_by(select),
    )


def _before(moment: TimeValue) -> int:
    """Return the last whole millisecond before a time."""
    return -(-moment.microseconds // 1000) - 1


def _after(moment: TimeValue) -> int:
    """Return the first whole millisecond after a time."""
    return moment.microseconds // 1000 + 1


def _count_by(select: Select) -> tuple[str, ...] | None:
    """Return the columns by which a query only counts rows; `None` for any other query."""
    aggregates = [one for one in select.columns or () if isinstance(one, Aggregate)]
    counts = Aggregate(function=AggregateFunction.COUNT, field=None)
    if aggregates != [counts] or any(one.path for one in select.group_by):
        return None
    return tuple(one.column for one in select.group_by)


def _listed(condition: Condition, subqueries: Subqueries) -> tuple[str, Collection[Json]]:
    """Return a column and the values that a condition allows; no column for other conditions."""
    if isinstance(condition, Or):
        parts = [_listed(part, subqueries) for part in condition.parts]
        column = parts[0][0] if len({column for column, _ in parts}) == 1 else ""
        return column, [value for _, values in parts for value in values]
    if isinstance(condition, InSelect) and len(condition.fields) == 1:
        column = condition.fields[0].column
        return column, [loads_again(text.encode()) for (text,) in subqueries.values(condition)]
    if not isinstance(condition, Compare | OneOf) or condition.field.column in _NOT_LISTED:
        return "", ()
    if condition.field.path or condition.field.members:
        return "", ()
    if isinstance(condition, OneOf):
        return condition.field.column, condition.values
    value = condition.value
    is_plain = condition.operator is Operator.EQUAL and not condition.contrary
    if not is_plain or isinstance(value, Loose | VersionValue | TimeValue):
        return "", ()
    return condition.field.column, [value]


def _place(condition: Compare, entity: Entity) -> str | None:
    field = condition.field
    if field.column == "certname":
        return "node"
    if entity is not Entity.INVENTORY or condition.contrary or field.members:
        return None  # the index has scalars only
    if field.column == "role" or (field.column == "facts" and field.path == ("role",)):
        return "role"
    if field.column != "facts" or not field.path:
        return None
    steps = [step for step in field.path if isinstance(step, str) and "." not in step]
    if len(steps) != len(field.path) or may_be_derived(steps[0]):
        return None
    return ".".join(steps)


def _values(condition: Compare) -> list[Scalar]:
    if condition.operator is not Operator.EQUAL or condition.contrary:
        return []
    value = condition.value
    if isinstance(value, Loose):
        if number_in(value.text) is not None:
            return []  # a text such as 12.40 equals 12.4
        booleans: dict[str, list[Scalar]] = {"true": [True], "false": [False]}
        return [value.text, *booleans.get(value.text, [])]
    return [value] if isinstance(value, str | int | float) else []
