"""Derive hints from a condition: what every node or row of an answer must have.

- A hint never excludes a matching node; if that is uncertain, there is no hint.
"""

from collections.abc import Collection
from typing import Protocol

from localpuppet.base.formats.strict_json import loads_again
from localpuppet.fleet.inventory.query.budget import QueryBudget
from localpuppet.fleet.inventory.query.comparing import number_in
from localpuppet.fleet.inventory.query.node_facts import may_be_derived
from localpuppet.fleet.inventory.query.tree import (
    Compare,
    Condition,
    Entity,
    InSelect,
    Loose,
    OneOf,
    Operator,
    Select,
    conjuncts,
    is_equality,
)
from localpuppet.fleet.inventory.reading import Scalar


class Subqueries(Protocol):
    """Evaluates the subqueries of a condition.

    Attributes:
        budget: What the query may still use.
    """

    budget: QueryBudget

    def values(self, condition: InSelect) -> Collection[tuple[str, ...]]:
        """Return the rows of a subquery, each as a tuple with its values as JSON texts."""


def necessary(select: Select) -> dict[str, Collection[Scalar]]:
    """Return sets of values, one of which must match, by `node`, `role` or dotted fact path."""
    hints: dict[str, Collection[Scalar]] = {}
    for condition in conjuncts(select.where):
        if not isinstance(condition, Compare | OneOf):
            continue
        if isinstance(condition, Compare):
            path = _place(condition, select.entity)
            values = _values(condition)
        else:
            path = "node" if condition.field.column == "certname" else None
            values = [value for value in condition.values if isinstance(value, str | int | float)]
        if path is not None and values:
            hints.setdefault(path, values)
    return hints


def fact_names(entity: Entity, where: Condition) -> frozenset[str] | None:
    """Return the fact names that can match in rows of facts; `None` for all."""
    if entity not in (Entity.FACTS, Entity.FACT_CONTENTS):
        return None
    for condition in conjuncts(where):
        if isinstance(condition, OneOf) and condition.field.column == "name":
            return frozenset(item for item in condition.values if isinstance(item, str))
        if is_equality(condition, "name") and isinstance(condition.value, str):
            return frozenset({condition.value})
        if is_equality(condition, "path") and isinstance(condition.value, list):
            return frozenset(map(str, condition.value[:1]))
    return None


def named_nodes(select: Select, subqueries: Subqueries) -> set[str] | None:
    """Return node names from a subquery, one of which must match; `None` without such a one."""
    for condition in conjuncts(select.where):
        if isinstance(condition, InSelect) and [field.column for field in condition.fields] == [
            "certname"
        ]:
            return {str(loads_again(name.encode())) for (name,) in subqueries.values(condition)}
    return None


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
