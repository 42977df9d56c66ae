"""Evaluate a condition on a row: true, false or unknown, as in SQL.

- For missing fields the results are PuppetDB's: `facts.x = 1` is false without a fact x, so `!
  (facts.x = 1)` selects the node. Order and regular expressions are unknown, and so is their
  negation.
- A regular expression is searched in the text of a scalar: `64` matches the number 64.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from itertools import takewhile

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.query import patterns
from localpuppet.fleet.inventory.query.columns import LISTS, NESTED, PARAMETER, TAG
from localpuppet.fleet.inventory.query.comparing import compare, same
from localpuppet.fleet.inventory.query.hints import Subqueries, fact_names
from localpuppet.fleet.inventory.query.resource_scope import is_in_entries, scope_of
from localpuppet.fleet.inventory.query.rows import NodeRows, QueryRow, leaves
from localpuppet.fleet.inventory.query.tree import (
    And,
    Compare,
    Condition,
    Field,
    InSelect,
    IsNull,
    Loose,
    Not,
    OneOf,
    Operator,
    Or,
    Pattern,
    RelatedCondition,
    Step,
    Value,
)

Holds = Callable[[QueryRow, NodeRows | None], bool | None]
Count = Callable[[], None]


def compiled(condition: Condition, subqueries: Subqueries, *, by_node: bool) -> Holds:
    """Return a function that evaluates a condition on a row.

    Args:
        condition: The condition.
        subqueries: Evaluates the subqueries of the condition.
        by_node: Whether each row is given with the rows of its node.

    Raises:
        InvalidInputError: A regular expression is invalid.
    """
    if isinstance(condition, And | Or):
        parts = [compiled(part, subqueries, by_node=by_node) for part in condition.parts]
        return _all(parts) if isinstance(condition, And) else _any(parts)
    if isinstance(condition, Not):
        return _negated(compiled(condition.part, subqueries, by_node=by_node))
    if isinstance(condition, Compare):
        return _compare(condition, subqueries.budget.compare)
    if isinstance(condition, IsNull):
        return _is_null(condition, subqueries.budget.compare)
    if isinstance(condition, OneOf):
        return _one_of(condition, subqueries.budget.compare)
    if isinstance(condition, RelatedCondition):
        if by_node and is_in_entries(condition):
            return _related(condition, subqueries)
        condition = condition.as_select()
    return _in_select(condition, subqueries.values(condition))


def _all(parts: list[Holds]) -> Holds:
    def holds(row: QueryRow, node: NodeRows | None) -> bool | None:
        verdict: bool | None = True
        for part in parts:
            item = part(row, node)
            if item is False:
                return False
            verdict = verdict if item else None
        return verdict

    return holds


def _any(parts: list[Holds]) -> Holds:
    def holds(row: QueryRow, node: NodeRows | None) -> bool | None:
        verdict: bool | None = False
        for part in parts:
            item = part(row, node)
            if item is True:
                return True
            verdict = None if item is None else verdict
        return verdict

    return holds


def _negated(part: Holds) -> Holds:
    def holds(row: QueryRow, node: NodeRows | None) -> bool | None:
        verdict = part(row, node)
        return None if verdict is None else not verdict

    return holds


def _compare(condition: Compare, count: Count) -> Holds:
    if condition.field.column == TAG and condition.operator is Operator.EQUAL:
        condition = replace(condition, value=_lowered(condition.value))  # as tags are
    read = _reader(condition.field, count)
    test = _test(condition)

    def holds(row: QueryRow, node: NodeRows | None) -> bool | None:
        verdict: bool | None = None
        for value in read(row):
            count()  # a regular expression takes time, even in a short row
            one_verdict = None if value is None else test(value)
            if one_verdict is True:
                return True
            verdict = False if one_verdict is False else verdict
        return verdict

    absent_is_false = (
        condition.operator is Operator.EQUAL
        and condition.field.column in (*NESTED, PARAMETER)
        and not any(isinstance(step, int) for step in condition.field.path)
    )
    if not absent_is_false and not condition.contrary and not condition.field.members:
        return holds
    return lambda row, node: holds(row, node) is True


def _test(condition: Compare) -> Callable[[Json], bool | None]:
    operator, wanted = condition.operator, condition.value
    test: Callable[[Json], bool | None]
    if operator is Operator.MATCH:
        test = _found(wanted)
    elif operator is Operator.PATH_MATCH:
        test = _path_match(wanted)
    elif operator is Operator.EQUAL and condition.field.column in NESTED and _is_json(wanted):
        test = lambda actual: contains(actual, wanted)  # noqa: E731 - one of four
    else:
        test = lambda actual: compare(actual, operator, wanted)  # noqa: E731 - one of four
    if not condition.contrary:
        return test

    def contrary(actual: Json) -> bool | None:
        verdict = test(actual)
        return None if verdict is None else not verdict

    return contrary


def _lowered(value: Value) -> Value:
    if isinstance(value, Loose):
        return Loose(value.text.lower())
    return value.lower() if isinstance(value, str) else value


def _is_json(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str | list | dict)


def contains(actual: Json, wanted: object) -> bool:
    """Return whether a value contains another, like JSON in PostgreSQL."""
    if isinstance(wanted, list):
        return isinstance(actual, list) and all(
            any(contains(element, part) for element in actual) for part in wanted
        )
    if isinstance(wanted, bool | int | float | str):
        return same(actual, wanted)
    return actual is None and wanted is None


def _found(wanted: object) -> Callable[[Json], bool | None]:
    expression = wanted.text if isinstance(wanted, Loose) else wanted
    if not isinstance(expression, str):
        raise InvalidInputError("a regular expression must be a string")
    search = patterns.searching(expression)

    def test(actual: Json) -> bool | None:
        text = scalar_text(actual)
        return None if text is None else search(text)

    return test


def scalar_text(value: Json) -> str | None:
    """Return a scalar as JSON text without quotes; `None` for any other value."""
    if isinstance(value, str):
        return value
    return None if value is None or isinstance(value, list | dict) else json.dumps(value)


def _path_match(wanted: object) -> Callable[[Json], bool | None]:
    if not isinstance(wanted, list):
        raise InvalidInputError("'~>' compares with a list of regular expressions")
    steps = [_step(step) for step in wanted]

    def test(actual: Json) -> bool:
        return (
            isinstance(actual, list)
            and len(actual) == len(steps)
            and all(step(key_or_index) for step, key_or_index in zip(steps, actual, strict=True))
        )

    return test


def _step(wanted: Json) -> Callable[[Json], bool]:
    """Return a function that matches a path step: a number is an index, not a key."""
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        return lambda actual: actual == wanted
    if not isinstance(wanted, str):
        raise InvalidInputError("a step of a path is a regular expression or an index")
    search = patterns.searching(wanted)
    only_digits = wanted.isdigit()

    def test(actual: Json) -> bool:
        if isinstance(actual, int):
            return not only_digits and search(str(actual))
        return isinstance(actual, str) and search(actual)

    return test


def _is_null(condition: IsNull, count: Count) -> Holds:
    read = _reader(condition.field, count)

    def holds(row: QueryRow, node: NodeRows | None) -> bool:
        return all(value is None for value in read(row)) is condition.wanted

    return holds


def _one_of(condition: OneOf, count: Count) -> Holds:
    read = _reader(condition.field, count)
    wanted = {key(value) for value in condition.values}

    def holds(row: QueryRow, node: NodeRows | None) -> bool | None:
        values = [value for value in read(row) if value is not None]
        return any(key(value) in wanted for value in values) if values else None

    return holds


def _related(condition: RelatedCondition, subqueries: Subqueries) -> Holds:
    inner = compiled(condition.where, subqueries, by_node=True)
    scope = scope_of(condition.where)
    of_one_fact = len(condition.columns) > 1
    last: tuple[NodeRows | None, bool] = (None, False)

    def has_match(node: NodeRows, names: frozenset[str] | None) -> bool:
        for row in node.rows(condition.entity, names, scope):
            subqueries.budget.see()
            if inner(row, node) is True:
                return True
        return False

    named = fact_names(condition.entity, condition.where)

    def holds(row: QueryRow, node: NodeRows | None) -> bool:
        nonlocal last
        if node is None:
            return False
        if of_one_fact:
            name = row.at("name")
            return has_match(node, frozenset({name}) if isinstance(name, str) else named)
        if last[0] is not node:  # the same for each row of a node
            last = (node, has_match(node, named))
        return last[1]

    return holds


def _in_select(condition: InSelect, wanted: Collection[tuple[str, ...]]) -> Holds:
    def holds(row: QueryRow, node: NodeRows | None) -> bool | None:
        values = [row.at(field.column, exact(field.path)) for field in condition.fields]
        if any(value is None for value in values):
            return None
        return tuple(key(value) for value in values) in wanted

    return holds


def _reader(field: Field, count: Count) -> Callable[[QueryRow], Iterable[Json]]:
    """Return a function that returns a row's values at a field: several if a step is a pattern.

    Args:
        field: The field.
        count: Called for each value that a pattern looks at.
    """
    column, path = field.column, field.path
    if column == PARAMETER:
        column = "parameters"
    if column in ("role", TAG) or column in LISTS:
        several = "tags" if column == TAG else column
        return lambda row: _elements(row.at(several))
    if not any(isinstance(step, Pattern) for step in path):
        place = exact(path)
        if field.members:
            return lambda row: members(row.at(column, place))
        return lambda row: (row.at(column, place),)
    above = exact(tuple(takewhile(lambda step: not isinstance(step, Pattern), path)))
    steps = [_pattern(step) for step in path[len(above) :]]

    def read(row: QueryRow) -> Iterator[Json]:
        for place, value in leaves(row.at(column, above)):
            count()
            if len(place) == len(steps) and all(
                step(key_or_index) for step, key_or_index in zip(steps, place, strict=True)
            ):
                yield value

    return read


def members(value: Json) -> list[Json]:
    """Return the elements of an array, the keys of a hash, or a list with the scalar."""
    return list(value) if isinstance(value, list | dict) else [value]


def _elements(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _pattern(step: Step) -> Callable[[str | int], bool]:
    if isinstance(step, Pattern):
        search = patterns.matching_whole(step.expression)
        return lambda key_or_index: search(str(key_or_index))
    return lambda key_or_index: key_or_index == step


def exact(path: tuple[Step, ...]) -> tuple[str | int, ...]:
    """Return a path that has no pattern, typed accordingly."""
    return tuple(step for step in path if not isinstance(step, Pattern))


def key(value: Json) -> str:
    """Return a key that equal values share; 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)
