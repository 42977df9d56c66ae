"""Rows that do not come from the inventory's entries only: reports, events, catalogs, nodes.

- A source gives the statement of a query a `Relation`: a table, or a SELECT, with the columns of
  `tree.COLUMNS` that the query uses, and `latest_report?` where conditions can use it. The
  statement applies the whole condition, order and page, as to the rows of entries.
- Hidden facts and sensitive values are not in a row. What conditions read, a client can find by
  filters.
- Entries have no resources but classes, by name, and exported ones. A query that could match others
  reads catalogs; without a source of them, `check_sources` rejects it by the type's name, because
  an empty answer would look as if there were no packages, for example.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Protocol

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import suggest
from localpuppet.base.formats.strict_json import compact
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.sqlite import sqlite3
from localpuppet.fleet.inventory.facts import unpublished
from localpuppet.fleet.inventory.query import tree
from localpuppet.fleet.inventory.query.comparing import exact_path
from localpuppet.fleet.inventory.query.compiling import COUNT, JSON, Relation
from localpuppet.fleet.inventory.tables import fact_names_sql, fact_sql, has_fact

CLASS = "Class"
_CATALOGS = "catalogs are not in the inventory"
_REPORTS = "reports are not in the inventory"
# The entities that only a `RecordSource` has, and why queries of entries reject them.
_OF_SOURCES = {
    tree.Entity.REPORTS: _REPORTS,
    tree.Entity.EVENTS: _REPORTS,
    tree.Entity.EVENT_COUNTS: _REPORTS,
    tree.Entity.AGGREGATE_EVENT_COUNTS: _REPORTS,
    tree.Entity.CATALOGS: _CATALOGS,
    tree.Entity.EDGES: _CATALOGS,
}
_EXPORTED = "exported = true"
# Columns of exported resources that classes do not have.
_OF_EXPORTED = frozenset(
    {tree.TAG, "tags", "file", "line", "parameters", tree.PARAMETER, "resource"}
)
# The rows that are written together, and the values of a subquery that `QueryContext.allowed` has.
_TOGETHER, MAX_VALUES = 500, 10_000
# The steps that a row costs which a source writes, or a value that a function reads.
VALUE = 64
_NOT_LISTED = tree.LISTS | tree.NESTED | {tree.TAG, tree.PARAMETER, "role"}


class MissingRowsError(InvalidInputError):
    """A source does not have the rows of all nodes."""


class QueryContext(Protocol):
    """The question that a query, or a subquery, is a part of; `known` is what sources prepared."""

    known: set[str]

    @property
    def connection(self) -> sqlite3.Connection:
        """Return its connection, in a transaction, with the names of `tables.attach`."""

    def writing(self) -> AbstractContextManager[None]:
        """Allow to create temporary tables and views."""

    def use(self, steps: int) -> None:
        """Count steps; see `QueryLimits`."""

    def allowed(self, select: tree.Select, column: str) -> Collection[Json] | None:
        """Return values of a column, one of which every matching row has; `None` for any."""


class RecordSource(Protocol):
    """Rows of entities that entries do not have, or not with all columns."""

    @property
    def entities(self) -> Collection[tree.Entity]:
        """Return the entities of this source; `NODES` for the reports of nodes."""

    def relation(self, select: tree.Select, question: QueryContext) -> Relation | None:
        """Return the rows of a query of one of the entities; `None` if entries have them.

        Raises:
            MissingRowsError: Some nodes do not publish the rows.
            UnavailableError: The rows cannot be read now: a node does not answer, for example.
        """


class CombinedRecords:
    """Rows of several sources, or of none; the last source that has an entity is asked."""

    def __init__(self, sources: Sequence[RecordSource] = ()) -> None:
        self._sources = {entity: source for source in sources for entity in source.entities}
        self.entities = tuple(self._sources)

    def relation(self, select: tree.Select, question: QueryContext) -> Relation | None:
        """Return the rows of a query; see `RecordSource`."""
        return self._sources[select.entity].relation(select, question)


def filled(
    rows: Iterable[Mapping[str, Json]], columns: Collection[str], question: QueryContext
) -> Relation:
    """Write rows into a temporary table with `columns` and `certname`; missing is null."""
    connection, listed = question.connection, sorted({"certname", *columns})
    (number,) = connection.execute("SELECT count(*) FROM sqlite_temp_schema").fetchone()
    name, waiting = f"temp.records_{number}", iter(rows)
    names = ", ".join(f'"{column}"' for column in listed)
    with question.writing():
        connection.execute(f"CREATE TABLE {name} ({names})")
        while some := [*islice(waiting, _TOGETHER)]:
            question.use(len(some) * VALUE)
            connection.executemany(
                f"INSERT INTO {name} VALUES ({', '.join('?' * len(listed))})",  # noqa: S608
                [[_cell(column, row.get(column)) for column in listed] for row in some],
            )
    return Relation(sql=name, is_table=True, natural=("r.rowid",))


def _cell(column: str, value: Json) -> str | None:
    """Return a value of a row as SQL has it."""
    if value is None or (isinstance(value, str) and column not in JSON):
        return value
    return compact(value)


def allowed(
    condition: tree.Condition, column: str, values_of: Callable[[tree.InSelect], list[Json] | None]
) -> Collection[Json] | None:
    """Return values of a column, one of which every matching row has; `None` for any.

    `values_of` returns the values of a subquery; `None` if it may have any.
    """
    for part in tree.conjuncts(condition):
        found = _allowed(part, column, values_of)
        if found is not None:
            return found
    return None


def _allowed(
    condition: tree.Condition, column: str, values_of: Callable[[tree.InSelect], list[Json] | None]
) -> Collection[Json] | None:
    if isinstance(condition, tree.Or):
        parts = [_allowed(part, column, values_of) for part in condition.parts]
        known = [values for values in parts if values is not None]
        return [value for one in known for value in one] if len(known) == len(parts) else None
    if isinstance(condition, tree.InSelect):
        if len(condition.fields) > 1 or _whole_column(condition.fields[0]) != column:
            return None
        return values_of(condition)
    if (
        not isinstance(condition, tree.Compare | tree.OneOf)
        or _whole_column(condition.field) != column
    ):
        return None
    if isinstance(condition, tree.OneOf):
        return condition.values
    value = condition.value
    is_plain = condition.operator is tree.Operator.EQUAL and not condition.contrary
    if not is_plain or isinstance(value, tree.Loose | tree.VersionValue | tree.TimeValue):
        return None
    return [value]


def _whole_column(field: tree.Field) -> str:
    """Return the column of a field that compares its whole value; empty for any other field."""
    is_part = field.path or field.members or field.column in _NOT_LISTED
    return "" if is_part else field.column


def groups_by(select: tree.Select, columns: Collection[str]) -> bool:
    """Return whether a query only groups or counts rows, and uses some columns only."""
    aggregates = {column for column in select.columns or () if isinstance(column, tree.Aggregate)}
    return tree.is_grouped(select) and aggregates <= {COUNT} and columns_of(select) <= {*columns}


def counts_by(select: tree.Select, columns: Collection[str]) -> bool:
    """Return whether a query only counts rows, and uses some columns only."""
    return COUNT in (select.columns or ()) and groups_by(select, columns)


def is_of_entries(select: tree.Select) -> bool:
    """Return whether the rows of a query come from entries."""
    if select.entity is tree.Entity.NODES:
        return True  # a source adds columns
    return select.entity not in _OF_SOURCES and _rejection(select) is None


def check_sources(select: tree.Select, entities: Collection[tree.Entity]) -> None:
    """Reject a query, or a subquery of it, whose rows come from nowhere."""
    for item in (select, *tree.subqueries(select.where)):
        rejection = None if item.entity in entities else _rejection(item)
        if rejection is not None:
            raise rejection


def check_facts(connection: sqlite3.Connection, select: tree.Select) -> None:
    """Reject a query, or a subquery of it, about facts of which no node has a value."""
    for item in (select, *tree.subqueries(select.where)):
        for path in _fact_paths(item):
            reason = unpublished([*map(str, path)])
            if reason and not has_fact(connection, path):
                name = one_line(".".join(map(str, path)))[:60]
                raise InvalidInputError(
                    f"the fact {name} is not published: {reason}",
                    where=item.entity.value,
                    hint=f"'puppet facts show {one_line(str(path[0]))[:60]}' on the node shows it",
                )


# What else a word of a query may mean: a role, or the title of a class.
_MEANINGS = (
    "SELECT (SELECT 'role=' || value FROM live CROSS JOIN json_each(roles) WHERE value = ?1),"
    " (SELECT 'Class[' || title || ']' FROM classes WHERE lower(title) = lower(?1))"
)


def unknown_names(connection: sqlite3.Connection, where: tree.Condition) -> Iterator[str]:
    """Yield a line for each fact, role and class in a condition on nodes that no node has."""
    for part, _ in tree.walk(where):
        if isinstance(part, tree.And) and len(part.parts) > 1 and _is_class(part.parts[0]):
            title = part.parts[1]
            if tree.is_equality(title, "title"):
                known = "SELECT title FROM classes CROSS JOIN live ON live.id = node"
                yield from _unknown(connection, "class", str(title.value), known)
        elif tree.is_equality(part, tree.ROLE.column):
            value = part.value.text if isinstance(part.value, tree.Loose) else part.value
            known = "SELECT value FROM live CROSS JOIN json_each(roles)"
            yield from _unknown(connection, "role", str(value), known)
        elif not isinstance(part, tree.Compare):
            continue
        elif part.field.column == "certname" and part.operator is tree.Operator.MATCH:
            yield from _misplaced(connection, str(part.value))
        elif part.field.column == "facts":
            path, parent = exact_path(part.field), exact_path(part.field)[:0]
            if not path or has_fact(connection, path):
                continue
            known = fact_names_sql()
            while has_fact(connection, path[: len(parent) + 1]):
                parent = path[: len(parent) + 1]
                value = fact_sql("live.id", parent)
                known = f"SELECT DISTINCT key FROM live CROSS JOIN json_each({value})"  # noqa: S608
            name = ".".join(map(str, path))
            prefix = ".".join([*map(str, parent), ""])
            yield from _unknown(connection, "fact", name, known, prefix)


def _misplaced(connection: sqlite3.Connection, word: str) -> Iterator[str]:
    """Yield that a word is in no node's name, if it is that of a fact, a role or a class."""
    meanings = (
        [f"{word}=VALUE"] if word == tree.ROLE.column or has_fact(connection, (word,)) else []
    )
    meanings += connection.execute(_MEANINGS, (word,)).fetchone()
    in_names = connection.execute("SELECT 1 FROM live WHERE instr(certname, ?)", (word,))
    if (meant := next(filter(None, meanings), None)) and not in_names.fetchone():
        yield f"no node has {word!r} in its name (did you mean {meant!r}?)"


def _unknown(
    connection: sqlite3.Connection, kind: str, name: str, known: str, parent: str = ""
) -> Iterator[str]:
    """Yield that no node has a name, unless it is among the words that a statement selects."""
    words = {f"{parent}{word}" for (word,) in connection.execute(known) if word is not None}
    if name not in words:
        hint = suggest(name, sorted(words), most=1)
        text = f"no node has the {kind} {one_line(name)[:60]}"
        yield f"{text} ({one_line(hint)})" if hint else text


def _fact_paths(select: tree.Select) -> Iterator[tuple[str | int, ...]]:
    """Yield the paths of the facts that a query names, up to the first pattern."""
    for place in (*_fields_of_result(select), *_fields(select.where)):
        if place.column == "facts" and place.path:
            yield exact_path(place)
    if select.entity not in (tree.Entity.FACTS, tree.Entity.FACT_CONTENTS):
        return
    for condition, _ in tree.walk(select.where, inner=False):
        if isinstance(condition, tree.OneOf) and condition.field.column == "name":
            yield from ((str(name),) for name in condition.values)
        elif tree.is_equality(condition, "name"):
            yield (str(condition.value),)
        elif tree.is_equality(condition, "path") and isinstance(condition.value, list):
            yield tuple(step if isinstance(step, int) else str(step) for step in condition.value)


def _rejection(select: tree.Select) -> InvalidInputError | None:
    """Return why entries do not have the rows of a query; `None` if they have them."""
    entity = select.entity
    if entity in _OF_SOURCES:
        return InvalidInputError(f"{entity.value} is not supported: {_OF_SOURCES[entity]}")
    named = [*_fields_of_result(select), *_fields(select.where)]
    if entity is tree.Entity.NODES:
        absent = next((item.text for item in named if item.column in tree.OF_REPORTS), None)
        if absent is None:
            return None
        return InvalidInputError(f"the field {absent} of nodes is not supported: {_REPORTS}")
    return _resource_rejection(select.where, named) if entity is tree.Entity.RESOURCES else None


def _resource_rejection(
    condition: tree.Condition, fields: Sequence[tree.Field]
) -> InvalidInputError | None:
    """Return why entries do not have resources with a condition; `None` if they have them."""
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


def _fields_of_result(select: tree.Select) -> list[tree.Field]:
    """Return the fields of the columns, groups and order of a query."""
    columns = select.columns or ()
    named = [column for column in columns if isinstance(column, tree.Field)]
    named += [
        column.field
        for column in columns
        if isinstance(column, tree.Aggregate) and column.field is not None
    ]
    return [*named, *select.group_by, *(criterion.field for criterion in select.order)]


def columns_of(select: tree.Select) -> frozenset[str]:
    """Return the columns that a query uses."""
    used = {item.column for item in (*_fields_of_result(select), *_fields(select.where))}
    return frozenset(used.union(tree.COLUMNS[select.entity]) if select.columns is None else used)


def is_fuller_in_catalogs(select: tree.Select) -> bool:
    """Return whether catalogs have columns of a query that entries leave empty."""
    return (
        select.entity is tree.Entity.RESOURCES
        and select.columns is None
        and not _implies(select.where, _is_exported)
    )


def reads_exports(select: tree.Select) -> bool:
    """Return whether a query reads exported resources of entries."""
    return (
        select.entity is tree.Entity.RESOURCES
        and is_of_entries(select)
        and not _implies(select.where, lambda part: _is_class(part) or _is_not_exported(part))
    )


def _implies(condition: tree.Condition, is_it: Callable[[tree.Condition], bool]) -> bool:
    """Return whether a condition implies a part for which `is_it` is true."""
    if isinstance(condition, tree.And):
        return any(_implies(part, is_it) for part in condition.parts)
    if isinstance(condition, tree.Or):
        return bool(condition.parts) and all(_implies(part, is_it) for part in condition.parts)
    return is_it(condition)


def _is_class(condition: tree.Condition) -> bool:
    if isinstance(condition, tree.OneOf):
        return condition.field.column == "type" and all(
            value == CLASS for value in condition.values
        )
    return tree.is_equality(condition, "type") and condition.value == CLASS


def _is_exported(condition: tree.Condition) -> bool:
    return tree.is_equality(condition, "exported") and condition.value is True


def _is_not_exported(condition: tree.Condition) -> bool:
    return tree.is_equality(condition, "exported") and condition.value is False


def _fields(condition: tree.Condition) -> list[tree.Field]:
    """Return the fields of the row itself that a condition uses."""
    fields: list[tree.Field] = []
    for item, _ in tree.walk(condition, inner=False):
        if isinstance(item, tree.Compare | tree.IsNull | tree.OneOf):
            fields.append(item.field)
        elif isinstance(item, tree.InSelect):
            fields.extend(item.fields)
    return fields


def _types(condition: tree.Condition) -> list[str]:
    types: list[tree.Operand] = []
    for item, _ in tree.walk(condition):
        if isinstance(item, tree.Compare | tree.OneOf) and item.field.column == "type":
            types += item.values if isinstance(item, tree.OneOf) else (item.value,)
    return [value for value in types if isinstance(value, str)]
