"""Compile a query into one SQLite statement over the names of `tables.attach`.

- A column is a text, or JSON text (`JSON`). Conditions have SQL's three values: a comparison with a
  missing value is unknown, except `facts.x = 1`, which is false without a fact x, as in PuppetDB.
- What SQL cannot compare is a call of `holds`, a function of this process.
- Rows that entries do not have come from a `Relation`, those of a subquery from a temporary table:
  so a statement is as long as its query, and not nested.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.strict_json import compact
from localpuppet.base.formats.text import listed
from localpuppet.base.formats.values import Json
from localpuppet.base.value import Value
from localpuppet.fleet.inventory import tables
from localpuppet.fleet.inventory.query import comparing, tree
from localpuppet.fleet.inventory.query.comparing import key

# Columns with JSON text; the others are texts.
JSON = tree.NESTED.union(
    tree.NUMBERS,
    tree.BOOLEANS,
    listed("edges logs metrics path resource_events resources role tags"),
    (tree.TAG, tree.PARAMETER),
)
# Columns of conditions that are another column of the row.
ALIASES = {tree.TAG: "tags", tree.PARAMETER: "parameters"}
_FILLED = frozenset({"certname", "name", "title", "type"})
_FACTSETS = "/pdb/query/v4/factsets/"
_TYPE = (
    "CASE json_type(value) WHEN 'text' THEN 'string' WHEN 'real' THEN 'float'"
    " WHEN 'integer' THEN 'integer' WHEN 'true' THEN 'boolean' WHEN 'false' THEN 'boolean'"
    " ELSE 'null' END"
)
OF_ENTRY = (
    "certname, NULL AS deactivated, NULL AS expired, environment AS facts_environment,"
    " environment AS catalog_environment, timestamp AS facts_timestamp,"
    " timestamp AS catalog_timestamp"
)
_LEAVES = (
    "SELECT r.certname, r.environment, r.name, e.value ->> 0 AS path,"
    " nullif(e.value ->> 1, 'null') AS value, e.key AS place"
    " FROM ({}) r CROSS JOIN json_each(leaves({}, r.name, r.value)) e"
)
# The same for one path.
_PLACE = (
    "SELECT certname, environment, name, {1} AS path,"
    " nullif(value -> {2}, 'null') AS value, 0 AS place FROM ({0})"
    " WHERE json_type(value, {2}) NOT IN ('object', 'array')"
)
# SQLite merges sorted sources if their columns have the same affinity.
_CLASSES = (
    "SELECT l.certname, l.environment, CAST('Class' AS TEXT) AS type, c.title,"
    " CAST('false' AS TEXT) AS exported, CAST(NULL AS TEXT) AS tags, CAST(NULL AS TEXT) AS file,"
    " CAST(NULL AS TEXT) AS line, CAST(NULL AS TEXT) AS parameters, NULL AS resource"
    " FROM live l JOIN classes c ON c.node = l.id"
)
_EXPORTED = (
    " UNION ALL SELECT l.certname, l.environment, x.type, x.title, CAST('true' AS TEXT),"
    " CAST(x.body -> 'tags' AS TEXT), CAST(x.body ->> 'file' AS TEXT),"
    " CAST(nullif(x.body -> 'line', 'null') AS TEXT), CAST(x.body -> 'parameters' AS TEXT), NULL"
    " FROM live l JOIN held.resources x ON x.node = l.certname WHERE l.exports IS NOT NULL"
)
_SOURCES = {
    tree.Entity.INVENTORY: "(SELECT *, roles AS role,"  # noqa: S608
    f" {tables.value_sql(tables.TRUSTED, 'live.id')} AS trusted FROM live)",
    tree.Entity.NODES: f"(SELECT {OF_ENTRY} FROM live)",  # noqa: S608
    tree.Entity.FACTSETS: "(SELECT *, timestamp AS producer_timestamp, certname AS producer"
    " FROM live)",
    tree.Entity.FACTS: "({facts})",
    tree.Entity.FACT_CONTENTS: "({leaves})",
    tree.Entity.RESOURCES: "({resources})",
    tree.Entity.ENVIRONMENTS: "(SELECT DISTINCT environment AS name FROM live)",
    tree.Entity.PRODUCERS: "(SELECT certname AS name FROM live)",
    tree.Entity.FACT_NAMES: f"({tables.fact_names_sql()})",
    tree.Entity.FACT_PATHS: "(SELECT DISTINCT path, name, json_array_length(path) - 1 AS depth,"  # noqa: S608
    f" {_TYPE} AS type FROM ({{leaves}}))",
}
# The order of rows by default.
_NATURAL = {
    **dict.fromkeys(
        (tree.Entity.INVENTORY, tree.Entity.NODES, tree.Entity.FACTSETS), ("certname",)
    ),
    tree.Entity.FACTS: ("certname", "name"),
    tree.Entity.FACT_CONTENTS: ("certname", "name", "place"),
    tree.Entity.RESOURCES: ("certname", "exported", "type", "title"),
    **dict.fromkeys(
        (tree.Entity.ENVIRONMENTS, tree.Entity.PRODUCERS, tree.Entity.FACT_NAMES), ("name",)
    ),
    tree.Entity.FACT_PATHS: ("path",),
}
COUNT = tree.Aggregate(function=tree.AggregateFunction.COUNT, field=None)
_DOWN = " DESC"
# Microseconds of a day.
_DAY = 86_400_000_000
Test = Callable[[Any], bool | None]
# Matches a step of a path.
StepTest = Callable[[Any], bool]
Path = tuple[Json, ...]


class TimeColumn(Value):
    """A column with times of whole milliseconds.

    Attributes:
        sql: Milliseconds since 1970, as SQL of the row `r`.
        day: The day since 1970 by which rows are found, as SQL: the time is not after it.
        is_of_day: Whether the time is on that day; otherwise it may be earlier.
    """

    sql: str
    day: str
    is_of_day: bool = True


class Relation(Value):
    """Where the rows of a query come from, if entries do not have them.

    Attributes:
        sql: A table, or a SELECT in parentheses.
        is_table: Whether it is a temporary table, with all rows that the query may need.
        key: What names a row, as SQL of the row `r`: values of a page are read for its rows only.
        natural: The order of rows by default, as SQL of the row `r`.
        number: How many rows one row is, as SQL of the row `r`; empty for one.
        owners: A SELECT of the nodes that have such rows, with `{}` for the end of a SELECT from
            the row `r`; empty if each row has its `certname`.
        sorts: What rows are sorted by instead of a column, as SQL of the row `r`.
        keys: Column → a condition that follows from the column's being in a set, with `{}` for a
            SELECT of the set, by which SQLite finds rows.
    """

    sql: str
    is_table: bool = False
    key: tuple[str, ...] = ()
    natural: tuple[str, ...] = ()
    number: str = ""
    owners: str = ""
    times: Mapping[str, TimeColumn] = field(default_factory=dict)
    sorts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)


class Surroundings(Protocol):
    """What a statement needs beside the entries."""

    def test(self, call: Test, *, is_json: bool) -> int:
        """Return the number of a test, the first argument of the SQL function `holds`."""

    def path(self, steps: Sequence[StepTest] | None) -> int:
        """Return the number of a filter of paths, the first argument of `leaves`."""

    def relation(self, select: tree.Select) -> Relation | None:
        """Return the rows of a query that entries do not have; `None` if entries have them."""

    def names(self) -> Collection[str]:
        """Return the names of all facts but the legacy ones of interfaces."""

    def has_exports(self, select: tree.Select) -> bool:
        """Return whether a query of resources reads exported ones."""

    def store(self, text: str, values: Mapping[str, str], columns: str) -> str:
        """Store the different rows of a statement in a temporary table, and return its name."""


@dataclass(slots=True)
class Compiler:
    """Compiles one query with its subqueries."""

    around: Surroundings
    values: dict[str, str] = field(default_factory=dict)
    sets: dict[int, tuple[tree.Select, str]] = field(default_factory=dict)

    def rows(self, select: tree.Select, shown: Sequence[str], *, whole: bool = False) -> str:
        """Return a statement for the rows of a query; `whole` if all are needed, in any order."""
        orders = [] if whole else self._orders(select)
        relation, page = self.around.relation(select), ""
        if (select.limit is not None or select.offset) and not whole:
            page = f" LIMIT {-1 if select.limit is None else select.limit} OFFSET {select.offset}"
        is_paged = page and (select.order or select.offset) and not tree.is_grouped(select)
        if is_paged and relation is not None and relation.key:
            names = [f"k{place}" for place in range(len(relation.key))]
            keys = [f"{key} AS {name}" for key, name in zip(relation.key, names, strict=True)]
            found = _sorted(keys, self._from(replace(select, columns=())), orders) + page
            source = (
                f"FROM {relation.sql} r WHERE ({', '.join(relation.key)}) IN"  # noqa: S608
                f" (SELECT {', '.join(names)} FROM ({found}))"
            )
            page = ""
        else:
            source = self._from(select)
        if not tree.is_grouped(select) and (not select.order or relation is not None):
            return _sorted(shown, source, orders) + page
        text = f"SELECT {', '.join(shown)} {source}"
        if select.group_by:
            text += f" GROUP BY {', '.join(_key(select, place) for place in select.group_by)}"
        return text + (f" ORDER BY {', '.join(orders)}" if orders else "") + page

    def count(self, select: tree.Select) -> str:
        """Return a statement that counts all rows of a query, or its groups."""
        if not select.group_by:
            return self.rows(select, [self.result(select, COUNT)], whole=True)
        return f"SELECT count(*) FROM ({self.rows(select, ['count(*)'], whole=True)})"  # noqa: S608

    def names(self, select: tree.Select) -> str:
        """Return a statement for the names of the nodes with matching rows."""
        relation = self.around.relation(select)
        if relation is not None and relation.owners:
            return relation.owners.format(self._from(select)) + " ORDER BY 1"
        select = replace(select, columns=(tree.CERTNAME,), group_by=())
        return f"SELECT DISTINCT r.certname {self._from(select)} ORDER BY 1"

    def result(self, select: tree.Select, column: tree.Field | tree.Aggregate) -> str:
        """Return a column of a result: JSON text."""
        if isinstance(column, tree.Field):
            value = _value(select, column)
            return f"coalesce({value}, 'null')" if _is_json(column) else f"json_quote({value})"
        if column.field is None:
            relation = self.around.relation(select)
            number = "" if relation is None else relation.number
            return f"ifnull(sum({number}), 0)" if number else "count(*)"
        value = self.result(select, column.field)
        if column.function is tree.AggregateFunction.COUNT:
            return f"count(nullif({value}, 'null'))"
        is_json = int(_is_json(column.field))
        return f"coalesce({column.function.value}_of({value}, {is_json}), 'null')"

    def _from(self, select: tree.Select) -> str:
        rows = f"FROM {self._source(select)} r WHERE {self.condition(select, select.where)}"
        relation = self.around.relation(select)
        if relation is not None and relation.keys and tree.is_grouped(select):
            # SQLite finds the rows of a compound SELECT by its keys if the outer one only selects.
            return f"FROM (SELECT * {rows} LIMIT -1) r"
        return rows

    def _source(self, select: tree.Select) -> str:
        entity, relation = select.entity, self.around.relation(select)
        if relation is not None:
            return relation.sql
        source = _SOURCES[entity]
        if "{" in source:
            names, path = self._facts_of(select)
            sources = tables.facts_sql(names)
            facts = " UNION ALL ".join(sources)
            resources = _CLASSES
            if entity is tree.Entity.RESOURCES and self.around.has_exports(select):
                resources += _EXPORTED
            leaves = ""
            if path is not None:
                whole = tables.quoted(compact([*(names or ()), *path]))
                leaves = _PLACE.format(facts, whole, tables.json_path(path))
            elif "leaves" in source:
                number = self.around.path(_steps_of(select.where))
                # From each source: so those of one fact are sorted, and not all together.
                leaves = " UNION ALL ".join(_LEAVES.format(one, number) for one in sources)
            source = source.format(facts=facts, leaves=leaves, resources=resources)
        return source

    def _facts_of(self, select: tree.Select) -> tuple[Collection[str] | None, Path | None]:
        """Return the names of facts in matching rows, and their path; `None` for any."""
        for condition in tree.conjuncts(select.where):
            if isinstance(condition, tree.OneOf) and condition.field.column == "name":
                return [item for item in condition.values if isinstance(item, str)], None
            if tree.is_equality(condition, "name") and isinstance(condition.value, str):
                return [condition.value], None
            if tree.is_equality(condition, "path") and isinstance(condition.value, list):
                path = condition.value
                names = [str(step) for step in path[:1]]
                return names, tuple(path[1:]) if tables.is_plain_path(path) and names else None
        steps = _steps_of(select.where)
        if steps is None or len(steps) == 1:  # legacy facts of interfaces are scalars
            return None, None
        return [name for name in self.around.names() if steps and steps[0](name)], None

    def _orders(self, select: tree.Select) -> list[str]:
        orders: list[str] = []
        relation = self.around.relation(select)
        for criterion in select.order:
            down = _DOWN if criterion.descending else ""
            name = criterion.field.column
            if relation is not None and name in relation.sorts and not tree.is_grouped(select):
                orders += [f"{key}{down}" for key in relation.sorts[name]]
                continue
            aggregate = next(
                (
                    column
                    for column in select.columns or ()
                    if isinstance(column, tree.Aggregate) and column.function.value == name
                ),
                None,
            )
            if aggregate is None:
                value = _value(select, criterion.field)
            else:
                value = self.result(select, aggregate)
            if aggregate is not None or _is_json(criterion.field):
                orders += [f"sort_rank({value}){down}", f"({value}) ->> '$'{down}"]
            else:
                nulls = [] if name in _FILLED else [f"{value} IS NULL{down}"]
                orders += [*nulls, f"{value}{down}"]
        if tree.is_grouped(select):
            if relation is not None:
                return [*orders, *(_key(select, place) for place in select.group_by)]
            first = "min(r.certname)" if "certname" in tree.COLUMNS[select.entity] else ""
            return [*orders, first] if select.group_by and first else orders
        if relation is not None:
            return [*orders, *(key for key in relation.natural if key + _DOWN not in orders)]
        named = {criterion.field.column for criterion in select.order}
        natural = _NATURAL[select.entity]
        return (
            orders
            if natural == ("certname",) and named & {*natural}
            else [*orders, *(f"r.{column}" for column in natural)]
        )

    def condition(self, select: tree.Select, condition: tree.Condition) -> str:
        """Return a condition on the row `r` of a query as SQL."""
        if isinstance(condition, tree.And | tree.Or):
            word, empty = (" AND ", "1") if isinstance(condition, tree.And) else (" OR ", "0")
            parts = [self.condition(select, part) for part in condition.parts]
            return f"({word.join(parts) or empty})"
        if isinstance(condition, tree.Not):
            part = condition.part
            if isinstance(part, tree.Compare) and _is_of_path(part):
                return f"ifnull(NOT {self._tested(select, part)}, 0)"
            return f"(NOT {self.condition(select, part)})"
        if isinstance(condition, tree.InSelect):
            return self._in_select(select, condition)
        if isinstance(condition, tree.Compare):
            return self._compare(select, condition)
        several = comparing.values_of(condition.field)
        if isinstance(condition, tree.OneOf):
            return self._one_of(select, condition)
        if several is None:
            word = "" if condition.wanted else "NOT "
            return f"({_value(select, condition.field)} IS {word}NULL)"
        parts_of, wanted = several, condition.wanted
        return self._holds(
            select,
            condition.field,
            lambda value: all(part is None for part in parts_of(value)) is wanted,
        )

    def _holds(self, select: tree.Select, place: tree.Field, call: Test) -> str:
        """Return a call of `holds` with the value of a field before its first pattern."""
        number = self.around.test(call, is_json=_is_json(place))
        value = _value(select, replace(place, path=comparing.exact_path(place)))
        return f"holds({number}, {value})"

    def _compare(self, select: tree.Select, condition: tree.Compare) -> str:
        sql, place = self._tested(select, condition), condition.field
        if _is_of_path(condition) and (place.column == "trusted" or len(place.path) > 1):
            # Unknown for a missing part of a present fact; `trusted` is always present.
            first = replace(place, path=comparing.exact_path(place)[: place.column != "trusted"])
            return f"coalesce({sql}, CASE WHEN {_value(select, first)} IS NULL THEN 0 END)"
        absent_is_false = (
            place.column in (*tree.NESTED, tree.PARAMETER)
            or place.members
            or condition.contrary
            or condition.operator.is_of_text
        )
        return f"ifnull({sql}, 0)" if absent_is_false else sql

    def _tested(self, select: tree.Select, condition: tree.Compare) -> str:
        """Return a comparison that is null for a missing value."""
        place, wanted, test = condition.field, condition.value, comparing.test_of(condition)
        parts_of = comparing.values_of(place)
        is_equal = condition.operator is tree.Operator.EQUAL
        if condition.operator is tree.Operator.MATCH and parts_of is None and _is_json(place):
            number = self.around.test(comparing.on_text(test, condition), is_json=False)
            return f"holds({number}, {_value(select, place)})"
        if is_equal and parts_of is None and isinstance(wanted, str) and not condition.contrary:
            text = self._bound(compact(wanted) if _is_json(place) else wanted)
            found = self._key_of(select, place, f"SELECT {text}")
            return f"({_value(select, place)} = {text}{found})"
        timed = self._time_of(select, condition)
        if timed is not None:
            return timed

        def call(value: Json) -> bool | None:
            verdict: bool | None = None
            for part in (value,) if parts_of is None else parts_of(value):
                one = None if part is None else test(part)
                if one is True:
                    return True
                verdict = False if one is False else verdict
            return verdict

        return self._holds(select, place, call)

    def _time_of(self, select: tree.Select, condition: tree.Compare) -> str | None:
        """Return a comparison with a time as numbers; `None` if the column has texts only."""
        relation, value = self.around.relation(select), condition.value
        time = None if relation is None else relation.times.get(condition.field.column)
        if time is None or not isinstance(value, tree.TimeValue):
            return None
        sign = "=" if condition.operator is tree.Operator.EQUAL else condition.operator.value
        text = f"{time.sql} * 1000 {sign} {value.microseconds}"
        day = value.microseconds // _DAY
        if sign in ("=", ">", ">="):
            text += f" AND {time.day} >= {day}"
        if time.is_of_day and sign in ("=", "<", "<="):
            text += f" AND {time.day} <= {day}"
        return f"({text})"

    def _key_of(self, select: tree.Select, place: tree.Field, values: str) -> str:
        """Return what follows from a field's being in a set, after ` AND `; empty for nothing."""
        relation = self.around.relation(select)
        if relation is None or place.column not in relation.keys or place.path or place.members:
            return ""
        return f" AND {relation.keys[place.column].format(values)}"

    def _one_of(self, select: tree.Select, condition: tree.OneOf) -> str:
        if not condition.values:
            return "0"
        place, parts_of = condition.field, comparing.values_of(condition.field)
        texts = [value for value in condition.values if isinstance(value, str)]
        # JSON functions of SQLite cut a text at a null character.
        if parts_of is None and (
            len(texts) == len(condition.values) if _is_json(place) else "\0" not in "".join(texts)
        ):
            listed = compact([*map(compact, texts)] if _is_json(place) else texts)
            wanted = f"SELECT value FROM json_each({self._bound(listed)})"  # noqa: S608
            found = self._key_of(select, place, wanted)
            return f"({_value(select, place)} IN ({wanted}){found})"
        keys = {key(value) for value in condition.values}

        def call(value: Json) -> bool | None:
            values = (value,) if parts_of is None else parts_of(value)
            known = [part for part in values if part is not None]
            return any(key(part) in keys for part in known) if known else None

        return self._holds(select, place, call)

    def _in_select(self, select: tree.Select, condition: tree.InSelect) -> str:
        forms, values = self._stored(condition)
        left = [form(select, one) for form, one in zip(forms, condition.fields, strict=True)]
        found = self._key_of(select, condition.fields[0], values) if forms == [_value] else ""
        return f"(({', '.join(left)}) IN ({values}){found})"

    def values_of(self, condition: tree.InSelect) -> str:
        """Return a statement for the values of a subquery with one field, as JSON texts."""
        forms, values = self._stored(condition)
        return f"SELECT {'json_quote(c0)' if forms == [_value] else 'c0'} FROM ({values})"  # noqa: S608

    def _stored(
        self, condition: tree.InSelect
    ) -> tuple[Sequence[Callable[[tree.Select, tree.Field], str]], str]:
        """Return how fields compare with those of a subquery, and these: it runs once."""
        inner = condition.select
        fields = [column for column in inner.columns or () if isinstance(column, tree.Field)]
        if len(fields) != len(condition.fields):
            raise InvalidInputError(
                f"'in' compares {len(condition.fields)} fields with {len(fields)}",
                hint="extract as many fields as there are before 'in'",
            )
        pairs = zip(condition.fields, fields, strict=True)
        forms = [_key if _is_json(one) or _is_json(other) else _value for one, other in pairs]
        if id(inner) not in self.sets:
            names = [f"c{number}" for number in range(len(forms))]
            shown = zip(forms, fields, names, strict=True)
            right = [f"{form(inner, other)} AS {name}" for form, other, name in shown]
            rows = self.rows(inner, right, whole=inner.limit is None and not inner.offset)
            known, listed = " AND ".join(f"{name} IS NOT NULL" for name in names), ", ".join(names)
            text = f"SELECT {listed} FROM ({rows}) WHERE {known}"  # noqa: S608
            self.sets[id(inner)] = inner, self.around.store(text, self.values, listed)
        return forms, f"SELECT * FROM {self.sets[id(inner)][1]}"  # noqa: S608

    def _bound(self, value: str) -> str:
        name = f"v{len(self.values)}"
        self.values[name] = value
        return f":{name}"


def _sorted(shown: Sequence[str], source: str, orders: Sequence[str]) -> str:
    """Return a statement with its sort keys behind its columns: so SQLite merges sources."""
    if not orders:
        return f"SELECT {', '.join(shown)} {source}"
    keys = [key.removesuffix(_DOWN) for key in orders]
    places = [
        f"{place}{_DOWN if key.endswith(_DOWN) else ''}"
        for place, key in enumerate(orders, len(shown) + 1)
    ]
    return f"SELECT {', '.join([*shown, *keys])} {source} ORDER BY {', '.join(places)}"


def _is_of_path(condition: tree.Compare) -> bool:
    """Return whether a comparison, and its negation, are false for a missing value, as in PuppetDB.

    It compares a fact by its path, and not the JSON that contains it.
    """
    place, is_equal = condition.field, condition.operator is tree.Operator.EQUAL
    has_index = any(isinstance(step, int) for step in place.path)
    is_plain = not (condition.contrary or place.members)
    return place.column in tree.NESTED and is_plain and (has_index or not is_equal)


def _is_json(place: tree.Field) -> bool:
    return place.column in JSON


def _value(select: tree.Select, place: tree.Field) -> str:
    """Return the value of a field without patterns: text, JSON text, or null."""
    column, path = place.column, comparing.exact_path(place)
    if column == "facts" and select.entity is tree.Entity.FACTSETS:
        every = " UNION ALL ".join(tables.facts_sql(None, "r"))
        return (
            f"json_object('href', '{_FACTSETS}' || r.certname || '/facts', 'data', json(("  # noqa: S608
            "SELECT json_group_array(json_object('name', name, 'value', json(value))) FROM"
            f" (SELECT name, value FROM ({every}) ORDER BY name))))"
        )
    if column == "hash" and select.entity is tree.Entity.FACTSETS:
        return f"sha1({tables.whole_facts_sql('r')})"
    if column == "facts":
        return tables.fact_sql("r.id", path) if path else tables.whole_facts_sql("r")
    column = ALIASES.get(column, column)
    return tables.dig_sql(f'r."{column}"', path)


def _key(select: tree.Select, place: tree.Field) -> str:
    """Return an expression for a field that equal values share; null for null."""
    value = _value(select, place)
    if _is_json(place):
        return f"value_key({value})"
    return f"CASE WHEN {value} IS NOT NULL THEN json_quote({value}) END"


def _steps_of(where: tree.Condition) -> Sequence[StepTest] | None:
    """Return what matches the steps of the path of each matching row; `None` for any path."""
    for condition in tree.conjuncts(where):
        if isinstance(condition, tree.Compare) and condition.operator is tree.Operator.PATH_MATCH:
            return (
                comparing.path_steps(condition.value) if isinstance(condition.value, list) else None
            )
    return None
