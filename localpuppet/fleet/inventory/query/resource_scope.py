"""Restrict queries for resources to those in the inventory: classes and exported resources.

- A condition must exclude all other resources. Otherwise it is rejected with the type's name,
  because an empty answer would look as if there were no packages, for example.
- The inventory has only the names of classes: a query for parameters or tags must ask for exported
  resources.

Example: `type = "Nagios_host" and exported = true` is supported, `type = "Package"` is not.
"""

from collections.abc import Callable
from typing import TypeGuard

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.text import one_line
from localpuppet.fleet.inventory.query.columns import TAG
from localpuppet.fleet.inventory.query.rows import CLASS, OF_EXPORTED, ResourceScope
from localpuppet.fleet.inventory.query.tree import (
    Aggregate,
    And,
    Compare,
    Condition,
    Entity,
    Field,
    InSelect,
    IsNull,
    Not,
    OneOf,
    Operator,
    Or,
    Select,
    conjuncts,
    walk,
)

_EXPORTED = "exported = true"


def check_resources(condition: Condition) -> None:
    """Reject a condition that other resources than classes and exported ones could match.

    Raises:
        InvalidInputError: Others could match, or the condition uses an unknown field of classes.
    """
    if not _implies(condition, lambda one: _is_class(one) or _is_exported(one)):
        types = sorted(set(_types(condition)) - {CLASS})
        named = (
            f"resources of type {one_line(types[0])[:60]} are"
            if types
            else "a query for all types is"
        )
        raise InvalidInputError(
            f"{named} not supported: the inventory has classes and exported resources only",
            where="resources",
            hint=f"add type = 'Class', or {_EXPORTED}",
        )
    _check_known(condition, _fields(condition))


def check_fields(select: Select) -> Select:
    """Return a query after checking that its columns and order are known for its rows.

    Raises:
        InvalidInputError: A column is unknown.
    """
    if select.entity is Entity.RESOURCES:
        columns = select.columns or ()
        named = [one for one in columns if isinstance(one, Field)]
        named += [
            one.field for one in columns if isinstance(one, Aggregate) and one.field is not None
        ]
        named += [*select.group_by, *(one.field for one in select.order)]
        if any(one.column == TAG for one in named):
            raise InvalidInputError(
                f"the field {TAG} is for conditions", where="resources", hint="ask for tags"
            )
        _check_known(select.where, named)
    return select


def scope_of(condition: Condition) -> ResourceScope:
    """Return the resources that a condition can match at most."""
    kinds = [
        one.value
        for one in conjuncts(condition)
        if isinstance(one, Compare) and _is_equal(one, "type") and isinstance(one.value, str)
    ]
    return ResourceScope(
        classes=not _implies(condition, _is_exported) and (not kinds or CLASS in kinds),
        exported=not _implies(condition, lambda one: _is_class(one) or _is_not_exported(one)),
        kind=kinds[0] if kinds else None,
    )


def _check_known(condition: Condition, fields: list[Field]) -> None:
    of_exported = [one for one in fields if one.column in OF_EXPORTED]
    if of_exported and not _implies(condition, _is_exported):
        raise InvalidInputError(
            f"the field {one_line(of_exported[0].text)[:60]} of a class is not supported: "
            "the inventory has its name only",
            where="resources",
            hint=f"add {_EXPORTED}",
        )


def _implies(condition: Condition, is_it: Callable[[Condition], bool]) -> bool:
    """Return whether a condition implies a part for which `is_it` is true."""
    if isinstance(condition, And):
        return any(_implies(part, is_it) for part in condition.parts)
    if isinstance(condition, Or):
        return bool(condition.parts) and all(_implies(part, is_it) for part in condition.parts)
    return is_it(condition)


def _is_class(condition: Condition) -> bool:
    if isinstance(condition, OneOf):
        return condition.field.column == "type" and all(one == CLASS for one in condition.values)
    return _is_equal(condition, "type") and condition.value == CLASS


def _is_exported(condition: Condition) -> bool:
    return _is_equal(condition, "exported") and condition.value is True


def _is_not_exported(condition: Condition) -> bool:
    return _is_equal(condition, "exported") and condition.value is False


def _is_equal(condition: Condition, column: str) -> TypeGuard[Compare]:
    return (
        isinstance(condition, Compare)
        and condition.field.column == column
        and condition.operator is Operator.EQUAL
        and not condition.contrary
    )


def _fields(condition: Condition) -> list[Field]:
    """Return the fields of the row itself that a condition uses."""
    found: list[Field] = []
    waiting = [condition]
    while waiting:
        one = waiting.pop()
        if isinstance(one, And | Or):
            waiting.extend(one.parts)
        elif isinstance(one, Not):
            waiting.append(one.part)
        elif isinstance(one, Compare | IsNull | OneOf):
            found.append(one.field)
        elif isinstance(one, InSelect):
            found.extend(one.fields)
    return found


def _types(condition: Condition) -> list[str]:
    found: list[str] = []
    for one, _ in walk(condition):
        if isinstance(one, Compare) and one.field.column == "type" and isinstance(one.value, str):
            found.append(one.value)
        if isinstance(one, OneOf) and one.field.column == "type":
            found += [value for value in one.values if isinstance(value, str)]
    return found
