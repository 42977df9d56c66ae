"""Decide which rows come from entries: of resources, only classes and exported ones.

- A condition on the resources of entries must exclude all other resources. Otherwise it is
  rejected with the type's name, because an empty answer would look as if there were no packages,
  for example.
- The inventory has only the names of classes: a query for parameters or tags must ask for exported
  resources.
- Whole catalogs, reports and events come from a `RecordSource`. Without one, `check_sources`
  rejects a query for them by name.

Example: `type = "Nagios_host" and exported = true` is in entries, `type = "Package"` is not.
"""

from collections.abc import Callable, Collection, Sequence

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.text import one_line
from localpuppet.fleet.inventory.query.columns import COLUMNS, OF_REPORTS
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
    OneOf,
    Or,
    RelatedCondition,
    Select,
    Value,
    conjuncts,
    is_equality,
    plain_fields,
    walk,
)

_EXPORTED = "exported = true"


_CATALOGS = "catalogs are not in the inventory"
_REPORTS = "reports are not in the inventory"
# The entities that only a `RecordSource` has, and why queries of entries reject them.
_OF_SOURCES = {
    Entity.REPORTS: _REPORTS,
    Entity.EVENTS: _REPORTS,
    Entity.EVENT_COUNTS: _REPORTS,
    Entity.AGGREGATE_EVENT_COUNTS: _REPORTS,
    Entity.CATALOGS: _CATALOGS,
    Entity.EDGES: _CATALOGS,
}
# Entities with rows of their own for each node.
_BY_NODE = frozenset(
    {
        Entity.INVENTORY,
        Entity.NODES,
        Entity.FACTS,
        Entity.FACT_CONTENTS,
        Entity.FACTSETS,
        Entity.RESOURCES,
    }
)


def is_in_entries(condition: RelatedCondition) -> bool:
    """Return whether the entry of a row's node decides about a condition."""
    if condition.entity not in _BY_NODE or condition.columns[0] != "certname":
        return False
    return _rejection(Select(entity=condition.entity, where=condition.where)) is None


def is_of_entries(select: Select) -> bool:
    """Return whether the rows of a query come from entries."""
    if select.entity is Entity.NODES:
        return True  # a source adds columns
    return select.entity not in _OF_SOURCES and _rejection(select) is None


def check_sources(select: Select, entities: Collection[Entity]) -> None:
    """Reject a query, or a subquery of it, whose rows come from nowhere.

    Args:
        select: The query.
        entities: The entities of the source beside the entries.

    Raises:
        InvalidInputError: Neither entries nor the source have such rows.
    """
    inner = (_subquery(part) for part, _ in walk(select.where))
    for item in (select, *inner):
        rejection = None if item is None or item.entity in entities else _rejection(item)
        if rejection is not None:
            raise rejection


def _subquery(condition: Condition) -> Select | None:
    if isinstance(condition, RelatedCondition):
        return Select(entity=condition.entity, where=condition.where)
    return condition.select if isinstance(condition, InSelect) else None


def _rejection(select: Select) -> InvalidInputError | None:
    """Return why entries do not have the rows of a query; `None` if they have them."""
    entity = select.entity
    if entity in _OF_SOURCES:
        return InvalidInputError(f"{entity.value} is not supported: {_OF_SOURCES[entity]}")
    named = [*_fields_of_result(select), *_fields(select.where)]
    if entity is Entity.NODES:
        absent = next((item.text for item in named if item.column in OF_REPORTS), None)
        if absent is None:
            return None
        return InvalidInputError(f"the field {absent} of nodes is not supported: {_REPORTS}")
    return _resource_rejection(select.where, named) if entity is Entity.RESOURCES else None


def _resource_rejection(condition: Condition, fields: Sequence[Field]) -> InvalidInputError | None:
    """Return why entries do not have resources with a condition; `None` if they have them.

    Args:
        condition: The condition.
        fields: The fields of the query.
    """
    if not _implies(condition, lambda item: _is_class(item) or _is_exported(item)):
        types = sorted(set(_types(condition)) - {CLASS})
        named = (
            f"resources of type {one_line(types[0])[:60]} are"
            if types
            else "a query for all types is"
        )
        return InvalidInputError(
            f"{named} not supported: the inventory has classes and exported resources only",
            where="resources",
            hint=f"add type = 'Class', or {_EXPORTED}",
        )
    if any(field.column == "resource" for field in fields):
        return InvalidInputError(
            "the field resource of resources is not supported: it is a hash of whole catalogs"
        )
    of_exported = [field for field in fields if field.column in OF_EXPORTED]
    if of_exported and not _implies(condition, _is_exported):
        return InvalidInputError(
            f"the field {one_line(of_exported[0].text)[:60]} of a class is not supported: "
            "the inventory has its name only",
            where="resources",
            hint=f"add {_EXPORTED}",
        )
    return None


def _fields_of_result(select: Select) -> list[Field]:
    """Return the fields of the columns, groups and order of a query."""
    columns = select.columns or ()
    named = [column for column in columns if isinstance(column, Field)]
    named += [
        column.field
        for column in columns
        if isinstance(column, Aggregate) and column.field is not None
    ]
    return [*named, *select.group_by, *(criterion.field for criterion in select.order)]


def columns_of(select: Select) -> frozenset[str]:
    """Return the columns that a query uses."""
    used = {item.column for item in (*_fields_of_result(select), *_fields(select.where))}
    return frozenset(used.union(COLUMNS[select.entity]) if select.columns is None else used)


def scope_of(condition: Condition) -> ResourceScope:
    """Return the resources that a condition can match at most."""
    kinds = [
        item.value
        for item in conjuncts(condition)
        if is_equality(item, "type") and isinstance(item.value, str)
    ]
    return ResourceScope(
        classes=not _implies(condition, _is_exported) and (not kinds or CLASS in kinds),
        exported=not _implies(condition, lambda part: _is_class(part) or _is_not_exported(part)),
        kind=kinds[0] if kinds else None,
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
        return condition.field.column == "type" and all(
            value == CLASS for value in condition.values
        )
    return is_equality(condition, "type") and condition.value == CLASS


def _is_exported(condition: Condition) -> bool:
    return is_equality(condition, "exported") and condition.value is True


def _is_not_exported(condition: Condition) -> bool:
    return is_equality(condition, "exported") and condition.value is False


def _fields(condition: Condition) -> list[Field]:
    """Return the fields of the row itself that a condition uses."""
    fields: list[Field] = []
    for item, _ in walk(condition, inner=False):
        if isinstance(item, Compare | IsNull | OneOf):
            fields.append(item.field)
        elif isinstance(item, InSelect):
            fields.extend(item.fields)
        elif isinstance(item, RelatedCondition):
            fields.extend(plain_fields(item.columns))
    return fields


def _types(condition: Condition) -> list[str]:
    types: list[Value] = []
    for item, _ in walk(condition):
        if isinstance(item, Compare | OneOf) and item.field.column == "type":
            types += item.values if isinstance(item, OneOf) else (item.value,)
    return [value for value in types if isinstance(value, str)]
