"""Which resources a question may be about: those that an inventory has, and no others.

An entry has the classes of a node's catalog. So that a question about packages does not look as if
there were none, a condition on resources must leave nothing but classes over; else it is refused,
and the message names the type.
"""

from localpuppet.errors import InvalidInputError
from localpuppet.formats.text import one_line
from localpuppet.inventory.query.rows import CLASS
from localpuppet.inventory.query.tree import (
    And,
    Compare,
    Condition,
    OneOf,
    Operator,
    Or,
    walk,
)


def check_resources(condition: Condition) -> None:
    """Refuse a condition on resources that others than classes could fulfil.

    Raises:
        InvalidInputError: They could.
    """
    for one, _ in walk(condition):
        if isinstance(one, Compare) and one.field.column == "exported" and one.value is not False:
            raise InvalidInputError(
                "exported resources are not answered: the inventory has classes only",
                where="resources",
            )
    if _only_classes(condition):
        return
    types = sorted(set(_types(condition)) - {CLASS})
    named = (
        f"resources of type {one_line(types[0])[:60]} are" if types else "a query for all types is"
    )
    raise InvalidInputError(
        f"{named} not answered: the inventory has classes only",
        where="resources",
        hint="add type = 'Class' and the class's title",
    )


def _only_classes(condition: Condition) -> bool:
    if isinstance(condition, And):
        return any(map(_only_classes, condition.parts))
    if isinstance(condition, Or):
        return all(map(_only_classes, condition.parts))
    if isinstance(condition, OneOf):
        return condition.field.column == "type" and all(one == CLASS for one in condition.values)
    return (
        isinstance(condition, Compare)
        and condition.field.column == "type"
        and condition.operator is Operator.EQUAL
        and condition.value == CLASS
        and not condition.contrary
    )


def _types(condition: Condition) -> list[str]:
    found: list[str] = []
    for one, _ in walk(condition):
        if isinstance(one, Compare) and one.field.column == "type" and isinstance(one.value, str):
            found.append(one.value)
        if isinstance(one, OneOf) and one.field.column == "type":
            found += [value for value in one.values if isinstance(value, str)]
    return found
