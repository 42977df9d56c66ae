"""Derive from a query what a source of rows may use to read less; see `records.RecordHint`."""

from collections.abc import Collection

from localpuppet.base.formats.strict_json import loads_again
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.query.columns import LISTS, NESTED, OF_REPORTS, PARAMETER, TAG
from localpuppet.fleet.inventory.query.conditions import compiled
from localpuppet.fleet.inventory.query.hints import Subqueries
from localpuppet.fleet.inventory.query.records import RecordHint, RowCondition
from localpuppet.fleet.inventory.query.resource_scope import columns_of
from localpuppet.fleet.inventory.query.rows import QueryRow
from localpuppet.fleet.inventory.query.tree import (
    Aggregate,
    AggregateFunction,
    And,
    Compare,
    Condition,
    Entity,
    Field,
    InSelect,
    IsNull,
    Loose,
    Not,
    OneOf,
    Operator,
    Or,
    Select,
    TimeValue,
    VersionValue,
    conjuncts,
    is_grouped,
    walk,
)

_NOT_LISTED = LISTS | NESTED | {TAG, PARAMETER, "role"}
_FROM = (Operator.EQUAL, Operator.GREATER, Operator.AT_LEAST)
_UP_TO = (Operator.EQUAL, Operator.LESS, Operator.AT_MOST)


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
    further: tuple[RowCondition, ...] = ()
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
            other = _row_condition(condition, subqueries)
            further += () if other is None else (other,)
            exact = exact and other is not None
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
        further=further,
        exact=exact,
        columns=columns_of(select),
        order=select.order if is_paged else (),
        limit=select.limit if is_paged else None,
        offset=select.offset if is_paged else 0,
        total=total and is_paged,
        count_by=None if is_joined else _count_by(select),
    )


def _row_condition(condition: Condition, subqueries: Subqueries) -> RowCondition | None:
    """Return a condition that needs only the columns of its row; `None` for any other one."""
    columns = set()
    for part, _ in walk(condition):
        if isinstance(part, Compare | IsNull | OneOf):
            columns.add(part.field.column)
        elif not isinstance(part, And | Or | Not):
            return None
    holds = compiled(condition, subqueries, by_node=False)
    return RowCondition(
        columns=frozenset(columns), holds=lambda row: holds(QueryRow(row), None) is True
    )


def _before(moment: TimeValue) -> int:
    """Return the last whole millisecond before a time."""
    return -(-moment.microseconds // 1000) - 1


def _after(moment: TimeValue) -> int:
    """Return the first whole millisecond after a time."""
    return moment.microseconds // 1000 + 1


def _count_by(select: Select) -> tuple[str, ...] | None:
    """Return the columns by which a query only counts rows; `None` for any other query."""
    aggregates = [column for column in select.columns or () if isinstance(column, Aggregate)]
    counts = Aggregate(function=AggregateFunction.COUNT, field=None)
    if aggregates != [counts] or any(field.path for field in select.group_by):
        return None
    return tuple(field.column for field in select.group_by)


def _whole_column(field: Field) -> str:
    """Return the column of a field that compares its whole value; empty for any other field."""
    is_part = field.path or field.members or field.column in _NOT_LISTED
    return "" if is_part else field.column


def _listed(condition: Condition, subqueries: Subqueries) -> tuple[str, Collection[Json]]:
    """Return a column and the values that a condition allows; no column for other conditions."""
    if isinstance(condition, Or):
        parts = [_listed(part, subqueries) for part in condition.parts]
        column = parts[0][0] if len({column for column, _ in parts}) == 1 else ""
        return column, [value for _, values in parts for value in values]
    if isinstance(condition, InSelect):
        column = _whole_column(condition.fields[0]) if len(condition.fields) == 1 else ""
        if not column:
            return "", ()
        return column, [loads_again(text.encode()) for (text,) in subqueries.values(condition)]
    if not isinstance(condition, Compare | OneOf) or not _whole_column(condition.field):
        return "", ()
    if isinstance(condition, OneOf):
        return condition.field.column, condition.values
    value = condition.value
    is_plain = condition.operator is Operator.EQUAL and not condition.contrary
    if not is_plain or isinstance(value, Loose | VersionValue | TimeValue):
        return "", ()
    return condition.field.column, [value]
