"""Rows that do not come from the inventory's entries: reports, events, catalogs.

- A source yields *candidates*: the statement applies the whole condition to every row. A hint only
  lets a source read less.
- Rows of `nodes` have the column `certname` and those of `columns.OF_REPORTS`, for every node with
  a report that the hint allows. The statement adds them to the rows of entries. A node without an
  entry is a row with the columns of reports only.
- Times in rows are whole milliseconds, so a range of times can be exact: `< T` is `<= T - 1 ms`.
- Rows of other entities have all columns of `columns.COLUMNS`, and `latest_report?` where
  conditions can use it. A column outside of `RecordHint.columns` may be missing.
- Hidden facts and sensitive values are not in a row. What conditions read, a client can find by
  filters.
- Entries have no resources but classes, by name, and exported ones. A query that could match others
  reads catalogs; without a source of them, `check_sources` rejects it by the type's name, because
  an empty answer would look as if there were no packages, for example.

Example: `source.rows(Entity.REPORTS, RecordHint(equal={"certname": ["web1"]}))`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.json_text import compact
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.sqlite import sqlite3
from localpuppet.fleet.inventory.facts import unpublished
from localpuppet.fleet.inventory.query.columns import (
    COLUMNS,
    LISTS,
    NESTED,
    OF_REPORTS,
    PARAMETER,
    TAG,
)
from localpuppet.fleet.inventory.query.comparing import exact_path
from localpuppet.fleet.inventory.query.compiling import ALIASES, JSON, RecordTable
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
    RelatedCondition,
    Select,
    SortOrder,
    TimeValue,
    Value,
    VersionValue,
    conjuncts,
    is_equality,
    is_grouped,
    plain_fields,
    subqueries,
    walk,
)
from localpuppet.fleet.inventory.tables import has_fact

CLASS = "Class"
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
_EXPORTED = "exported = true"
# Columns of exported resources that classes do not have.
_OF_EXPORTED = frozenset({TAG, "tags", "file", "line", "parameters", PARAMETER, "resource"})
# The rows that are written together, and the values of a subquery that a hint may have.
_TOGETHER, _MAX_VALUES = 500, 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCondition:
    """A condition on some columns of a row.

    Attributes:
        columns: The columns.
        holds: Whether a row with these columns has the condition.
    """

    columns: frozenset[str]
    holds: Callable[[Mapping[str, Json]], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordHint:
    """What a source may use to read less.

    Attributes:
        equal: The values by column, one of which every row of the answer has.
        since: The earliest time by column, inclusive, in milliseconds since 1970, UTC.
        until: The latest time by column, inclusive.
        further: Other conditions, each of which every row of the answer has.
        exact: Whether `equal`, `since`, `until` and `further` are the whole condition. Only then
            may a source that applies all of them apply `limit`, or count.
        columns: The columns that the query uses.
        order: The sort criteria; empty for any order.
        limit: The limit of rows after `offset`; `None` for all.
        offset: The number of rows to skip.
        total: Whether the query needs `RecordRows.total`.
        is_optional: Whether entries have the rows, too, with fewer columns. A source that has not
            all of them raises `MissingRowsError`.
        count_by: The columns of `group_by`, if the query only counts rows: its columns are among
            these and `count` without a field. `None` for any other query.
    """

    equal: Mapping[str, Collection[Json]] = field(default_factory=dict)
    since: Mapping[str, int] = field(default_factory=dict)
    until: Mapping[str, int] = field(default_factory=dict)
    further: tuple[RowCondition, ...] = ()
    exact: bool = False
    columns: frozenset[str] = frozenset()
    order: tuple[SortOrder, ...] = ()
    limit: int | None = None
    offset: int = 0
    total: bool = False
    is_optional: bool = False
    count_by: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRows:
    """The rows of a source.

    Attributes:
        rows: The rows, by column.
        ordered: Whether they are in the order of the hint.
        cut: Whether the source applied the hint's condition, order, offset and limit.
        total: The number of rows without `offset` and `limit`, if the source applied them and the
            hint needs it.
        counted: Whether the source counted: each row has the columns of `RecordHint.count_by` and
            the number of its rows as `count`. Several rows may be of one group. Only for an exact
            hint; the evaluator adds, orders and limits the groups.
    """

    rows: Iterable[Mapping[str, Json]]
    ordered: bool = False
    cut: bool = False
    total: int | None = None
    counted: bool = False


class MissingRowsError(InvalidInputError):
    """A source does not have the rows of all nodes."""


class RecordSource(Protocol):
    """Rows of entities that entries do not have."""

    @property
    def entities(self) -> Collection[Entity]:
        """Return the entities of this source; `NODES` for the reports of nodes."""

    def rows(self, entity: Entity, hint: RecordHint) -> RecordRows:
        """Return rows of an entity.

        Args:
            entity: One of `entities`.
            hint: What the query needs.

        Raises:
            MissingRowsError: Some nodes do not publish the rows.
            UnavailableError: The rows cannot be read now: a node does not answer, for example.
        """


class CombinedRecords:
    """Rows of several sources, or of none: each entity has one of them; a `RecordSource`.

    Args:
        sources: The sources; the last one that has an entity is asked.
    """

    def __init__(self, sources: Sequence[RecordSource] = ()) -> None:
        self._sources = {entity: source for source in sources for entity in source.entities}
        self.entities = tuple(self._sources)

    def rows(self, entity: Entity, hint: RecordHint) -> RecordRows:
        """Return rows of an entity; see `RecordSource`."""
        return self._sources[entity].rows(entity, hint)


_NOT_LISTED = LISTS | NESTED | {TAG, PARAMETER, "role"}
_FROM = (Operator.EQUAL, Operator.GREATER, Operator.AT_LEAST)
_UP_TO = (Operator.EQUAL, Operator.LESS, Operator.AT_MOST)


class HintSource(Protocol):
    """What a hint needs of the statement."""

    def values_of(self, select: Select, place: Field) -> list[Json]:
        """Return the values of a field in the rows of a subquery."""

    def row_test(
        self, select: Select, condition: Condition, columns: Collection[str]
    ) -> Callable[[Mapping[str, Json]], bool]:
        """Return a function that tests a condition on a row with some columns."""


def fill(
    connection: sqlite3.Connection,
    source: RecordSource,
    select: Select,
    hint: RecordHint,
    use: Callable[[int], None],
) -> RecordTable:
    """Write the rows of a query into a temporary table.

    Args:
        connection: The connection.
        source: The source of the rows.
        select: The query.
        hint: What the query needs.
        use: Counts the written rows.
    """
    answer = source.rows(select.entity, hint)
    (number,) = connection.execute("SELECT count(*) FROM sqlite_temp_schema").fetchone()
    name = f"temp.records_{number}"
    named = {ALIASES.get(column, column) for column in hint.columns}
    columns = sorted(named | ({"certname"} & {*COLUMNS[select.entity]}))
    if select.entity is Entity.NODES:
        columns = ["certname", *OF_REPORTS]
    if answer.counted:
        columns = [*(hint.count_by or ()), "count"]
    marks, listed = ", ".join("?" * len(columns)), ", ".join(f'"{column}"' for column in columns)
    connection.execute("PRAGMA query_only = OFF")
    connection.execute(f"CREATE TABLE {name} ({listed})")
    rows = iter(answer.rows)
    while some := [*islice(rows, _TOGETHER)]:
        use(len(some))
        connection.executemany(
            f"INSERT INTO {name} VALUES ({marks})",  # noqa: S608
            [[cell(column, row.get(column)) for column in columns] for row in some],
        )
    connection.execute("PRAGMA query_only = ON")
    return RecordTable(name=name, cut=answer.cut, total=answer.total, counted=answer.counted)


def cell(column: str, value: Json) -> str | int | None:
    """Return a value of a row as SQL has it."""
    if column == "count" and isinstance(value, int):
        return value
    if value is None or (isinstance(value, str) and column not in JSON):
        return value
    return compact(value)


def record_hint(select: Select, around: HintSource, *, total: bool = False) -> RecordHint:
    """Return what a source of rows may use to read less.

    Args:
        select: The query.
        around: The statement.
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
        column, values = _listed(condition, around)
        if is_joined and column not in ("certname", *OF_REPORTS):
            continue
        if column and column not in equal:
            equal[column] = values
            continue
        if not isinstance(condition, Compare) or not isinstance(condition.value, TimeValue):
            columns = _own_columns(condition)
            exact = exact and bool(columns)
            if columns:
                holds = around.row_test(select, condition, columns)
                further += (RowCondition(columns=columns, holds=holds),)
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
        is_optional=is_of_entries(select),
        count_by=None if is_joined else _count_by(select),
    )


def _own_columns(condition: Condition) -> frozenset[str]:
    """Return the columns of a condition that needs only its row; none for any other one."""
    parts = [part for part, _ in walk(condition) if not isinstance(part, And | Or | Not)]
    fields = [part.field for part in parts if isinstance(part, Compare | IsNull | OneOf)]
    columns = frozenset(place.column for place in fields)
    return columns if len(fields) == len(parts) else frozenset()


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


def _listed(condition: Condition, around: HintSource) -> tuple[str, Collection[Json]]:
    """Return a column and the values that a condition allows; no column for other conditions."""
    if isinstance(condition, Or):
        parts = [_listed(part, around) for part in condition.parts]
        column = parts[0][0] if len({column for column, _ in parts}) == 1 else ""
        return column, [value for _, values in parts for value in values]
    if isinstance(condition, RelatedCondition):
        condition = condition.as_select()
    if isinstance(condition, InSelect):
        column = _whole_column(condition.fields[0]) if len(condition.fields) == 1 else ""
        if not column:
            return "", ()
        (place,) = (item for item in condition.select.columns or () if isinstance(item, Field))
        wanted = around.values_of(condition.select, place)
        return ("", ()) if len(wanted) > _MAX_VALUES else (column, wanted)
    if not isinstance(condition, Compare | OneOf) or not _whole_column(condition.field):
        return "", ()
    if isinstance(condition, OneOf):
        return condition.field.column, condition.values
    value = condition.value
    is_plain = condition.operator is Operator.EQUAL and not condition.contrary
    if not is_plain or isinstance(value, Loose | VersionValue | TimeValue):
        return "", ()
    return condition.field.column, [value]


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
    for item in (select, *subqueries(select.where)):
        rejection = None if item.entity in entities else _rejection(item)
        if rejection is not None:
            raise rejection


def check_facts(connection: sqlite3.Connection, select: Select) -> None:
    """Reject a query, or a subquery of it, about facts of which no node has a value.

    Args:
        connection: A connection that `tables.attach` has prepared.
        select: The query.

    Raises:
        InvalidInputError: No node publishes a fact, and none ever does.
    """
    for item in (select, *subqueries(select.where)):
        for path in _fact_paths(item):
            reason = unpublished([*map(str, path)])
            if reason and not has_fact(connection, path):
                name = one_line(".".join(map(str, path)))[:60]
                raise InvalidInputError(
                    f"the fact {name} is not published: {reason}",
                    where=item.entity.value,
                    hint=f"'puppet facts show {one_line(str(path[0]))[:60]}' on the node shows it",
                )


def _fact_paths(select: Select) -> Iterator[tuple[str | int, ...]]:
    """Yield the paths of the facts that a query names, up to the first pattern."""
    for place in (*_fields_of_result(select), *_fields(select.where)):
        if place.column == "facts" and place.path:
            yield exact_path(place)
    if select.entity not in (Entity.FACTS, Entity.FACT_CONTENTS):
        return
    for condition, _ in walk(select.where, inner=False):
        if isinstance(condition, OneOf) and condition.field.column == "name":
            yield from ((str(name),) for name in condition.values)
        elif is_equality(condition, "name"):
            yield (str(condition.value),)
        elif is_equality(condition, "path") and isinstance(condition.value, list):
            yield tuple(step if isinstance(step, int) else str(step) for step in condition.value)


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
    of_exported = [field for field in fields if field.column in _OF_EXPORTED]
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


def is_fuller_in_catalogs(select: Select) -> bool:
    """Return whether catalogs have columns of a query that entries leave empty."""
    return (
        select.entity is Entity.RESOURCES
        and select.columns is None
        and not _implies(select.where, _is_exported)
    )


def reads_exports(select: Select) -> bool:
    """Return whether a query reads exported resources of entries."""
    return (
        select.entity is Entity.RESOURCES
        and is_of_entries(select)
        and not _implies(select.where, lambda part: _is_class(part) or _is_not_exported(part))
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
