"""A query about nodes as a tree, and the columns of each entity, as PuppetDB has them.

- A query selects rows of an *entity*. A node has one row of `inventory` and `nodes`, and many of
  `facts`, `fact_contents` and `resources`. `columns` lists the columns of each entity.
- A condition is true, false or unknown, as in SQL: a comparison with a missing value is unknown,
  and `Not` keeps that unknown. Only rows with a true condition match.

Example: `role=web` is `Compare(field=ROLE, operator=Operator.EQUAL, value=Loose("web"))`.

- A column that localpuppet does not have is rejected by name when a query is parsed. It never looks
  like an empty one.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from operator import ge, gt, le, lt
from typing import Any, TypeGuard

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.text import listed
from localpuppet.base.formats.values import Json
from localpuppet.base.value import Value
from localpuppet.fleet.inventory.query.query_limits import MAX_CONDITIONS, MAX_QUERY_DEPTH


class Entity(Enum):
    """The kinds of rows, with PuppetDB's names."""

    INVENTORY = "inventory"
    NODES = "nodes"
    FACTS = "facts"
    FACT_CONTENTS = "fact_contents"
    FACTSETS = "factsets"
    RESOURCES = "resources"
    ENVIRONMENTS = "environments"
    FACT_NAMES = "fact_names"
    FACT_PATHS = "fact_paths"
    PRODUCERS = "producers"
    REPORTS = "reports"
    EVENTS = "events"
    EVENT_COUNTS = "event_counts"
    AGGREGATE_EVENT_COUNTS = "aggregate_event_counts"
    CATALOGS = "catalogs"
    EDGES = "edges"


class Operator(Enum):
    """The comparison operators, with PuppetDB's symbols."""

    EQUAL = "="
    LESS = "<"
    AT_MOST = "<="
    GREATER = ">"
    AT_LEAST = ">="
    MATCH = "~"
    PATH_MATCH = "~>"

    @property
    def is_of_text(self) -> bool:
        """Whether it compares a value of any type with a text; a missing value is no match."""
        return self is Operator.MATCH


# The operators of order.
ORDERS: Mapping[Operator, Callable[[Any, Any], bool]] = {
    Operator.LESS: lt,
    Operator.AT_MOST: le,
    Operator.GREATER: gt,
    Operator.AT_LEAST: ge,
}
CONTRARIES = {"!=": Operator.EQUAL, "!~": Operator.MATCH}
# What the query languages accept as an operator.
OPERATORS = frozenset((*(operator.value for operator in Operator), *CONTRARIES))


@dataclass(frozen=True, slots=True)
class Pattern:
    """A path step that matches every key or index whose whole text matches an expression."""

    expression: str


Step = str | int | Pattern
_INDEX = re.compile(r"(?:0|[1-9][0-9]{0,5})\Z")


def parse_step(text: str) -> str | int:
    """Return a path step: a text in the form of an index becomes a number."""
    return int(text) if _INDEX.match(text) else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A place in a row.

    Attributes:
        path: The path in the column's value; a `Pattern` in it selects several places.
        members: Whether the values are the elements of an array and the keys of a hash; a
            comparison with such a field is never unknown.
    """

    column: str
    path: tuple[Step, ...] = ()
    text: str = field(default="", compare=False)
    members: bool = False


ROLE = Field(column="role")
CERTNAME = Field(column="certname", text="certname")


def plain_fields(columns: Iterable[str]) -> tuple[Field, ...]:
    """Return the fields of whole columns."""
    return tuple(Field(column=column, text=column) for column in columns)


@dataclass(frozen=True, slots=True)
class Loose:
    """A literal without a type: it is a number if the fact's text is one too."""

    text: str


@dataclass(frozen=True, slots=True)
class VersionValue:
    """A literal to compare as a version: part by part, digits as numbers."""

    text: str


@dataclass(frozen=True, slots=True)
class TimeValue:
    """A time since 1970, UTC, to compare with a column of times."""

    microseconds: int


Operand = Json | Loose | VersionValue | TimeValue


class Compare(Value):
    """A condition that compares a field with a value.

    If the field's path has a `Pattern`, one matching place is enough. The value is a regular
    expression for `MATCH`, a list of steps for `PATH_MATCH`. With `contrary`, there must be a value
    for which the comparison is false.
    """

    field: Field
    operator: Operator
    value: Operand
    contrary: bool = False


class IsNull(Value):
    """A condition that a field has a value or, if `wanted`, has none."""

    field: Field
    wanted: bool


class OneOf(Value):
    """A condition that a field's value is in a list."""

    field: Field
    values: tuple[Json, ...]


class InSelect(Value):
    """A condition that a row of a subquery has the values of some fields."""

    fields: tuple[Field, ...]
    select: "Select"


class Not(Value):
    """A condition that another one is false."""

    part: "Condition"


class And(Value):
    """A condition that all parts are true; true without parts."""

    parts: tuple["Condition", ...]


class Or(Value):
    """A condition that one of the parts is true."""

    parts: tuple["Condition", ...]


Condition = Compare | IsNull | OneOf | InSelect | Not | And | Or
ALL = And(parts=())


def equal(column: str, value: Json) -> Compare:
    """Return the condition that a column has a value."""
    return Compare(field=Field(column=column, text=column), operator=Operator.EQUAL, value=value)


class AggregateFunction(Enum):
    """The functions over the rows of a group, with PuppetDB's names."""

    COUNT = "count"
    SUM = "sum"
    AVERAGE = "avg"
    LEAST = "min"
    GREATEST = "max"


class Aggregate(Value):
    """A column with the result of a function over the rows of a group; all rows without a field."""

    function: AggregateFunction
    field: Field | None


class SortOrder(Value):
    """A sort criterion."""

    field: Field
    descending: bool = False


class Select(Value):
    """A query: of all columns unless some are named, by node name unless there is an order."""

    entity: Entity
    where: Condition = ALL
    columns: tuple[Field | Aggregate, ...] | None = None
    group_by: tuple[Field, ...] = ()
    order: tuple[SortOrder, ...] = ()
    limit: int | None = None
    offset: int = 0


def is_grouped(select: Select) -> bool:
    """Return whether the rows of a result are groups of rows."""
    return bool(select.group_by) or any(
        type(column) is Aggregate for column in select.columns or ()
    )


def check_size(condition: Condition) -> Condition:
    """Return a condition after checking its size."""
    for count, (_, depth) in enumerate(walk(condition), 1):
        if depth > MAX_QUERY_DEPTH:
            raise InvalidInputError(
                f"the query is nested too deep: more than {MAX_QUERY_DEPTH} levels"
            )
        if count > MAX_CONDITIONS:
            raise InvalidInputError(f"the query has more than {MAX_CONDITIONS} conditions")
    return condition


def is_equality(condition: Condition, column: str) -> TypeGuard[Compare]:
    """Whether a condition is that a column equals a value."""
    return (
        isinstance(condition, Compare)
        and condition.field.column == column
        and condition.operator is Operator.EQUAL
        and not condition.contrary
    )


def walk(condition: Condition, *, inner: bool = True) -> Iterator[tuple[Condition, int]]:
    """Yield a condition and all its parts with their depths; not recursive.

    Args:
        inner: Whether the conditions on rows of subqueries are among the parts.
    """
    waiting = [(condition, 1)]
    while waiting:
        item, level = waiting.pop()
        yield item, level
        if isinstance(item, And | Or):
            waiting.extend((part, level + 1) for part in item.parts)
        elif isinstance(item, Not):
            waiting.append((item.part, level + 1))
        elif inner and isinstance(item, InSelect):
            waiting.append((item.select.where, level + 1))


def subqueries(condition: Condition) -> Iterator[Select]:
    """Yield the subqueries of a condition, inner ones too."""
    for part, _ in walk(condition):
        if isinstance(part, InSelect):
            yield part.select


def related(
    entity: Entity,
    where: Condition,
    columns: tuple[str, ...] = ("certname",),
    others: tuple[str, ...] = ("certname",),
) -> InSelect:
    """Return the condition that another entity has a matching row with the same values."""
    select = Select(entity=entity, where=where, columns=plain_fields(others))
    return InSelect(fields=plain_fields(columns), select=select)


def conjuncts(condition: Condition) -> Iterator[Condition]:
    """Yield the conditions that must all hold: the parts of `And`, at any depth; not recursive."""
    waiting = [condition]
    while waiting:
        part = waiting.pop()
        if isinstance(part, And):
            waiting.extend(part.parts)
        else:
            yield part


# The columns of `nodes` that come from reports and not from an entry.
OF_REPORTS = listed(
    "report_timestamp report_environment latest_report_status latest_report_noop "
    "latest_report_noop_pending latest_report_corrective_change latest_report_hash "
    "latest_report_job_id cached_catalog_status"
)
COLUMNS: Mapping[Entity, tuple[str, ...]] = {
    Entity.INVENTORY: listed("certname timestamp environment facts trusted"),
    Entity.NODES: listed(
        "certname deactivated expired facts_environment catalog_environment facts_timestamp "
        "catalog_timestamp"
    )
    + OF_REPORTS,
    Entity.FACTS: listed("certname name value environment"),
    Entity.FACT_CONTENTS: listed("certname path name value environment"),
    Entity.FACTSETS: listed(
        "certname environment timestamp producer_timestamp producer facts hash"
    ),
    Entity.RESOURCES: listed(
        "certname type title exported environment tags file line parameters resource"
    ),
    Entity.ENVIRONMENTS: listed("name"),
    Entity.FACT_NAMES: listed("name"),
    Entity.FACT_PATHS: listed("path name type"),
    Entity.PRODUCERS: listed("name"),
    Entity.REPORTS: listed(
        "hash certname environment status noop noop_pending corrective_change puppet_version "
        "report_format configuration_version start_time end_time producer_timestamp receive_time "
        "producer transaction_uuid catalog_uuid code_id job_id cached_catalog_status type metrics "
        "logs resource_events"
    ),
    Entity.EVENTS: listed(
        "certname report environment configuration_version run_start_time run_end_time "
        "report_receive_time timestamp status corrective_change resource_type resource_title "
        "property name old_value new_value message file line containment_path containing_class"
    ),
    Entity.EVENT_COUNTS: listed("subject_type subject failures successes noops skips"),
    Entity.AGGREGATE_EVENT_COUNTS: listed("summarize_by failures successes noops skips total"),
    Entity.CATALOGS: listed(
        "certname version hash transaction_uuid catalog_uuid code_id job_id environment "
        "producer_timestamp producer resources edges"
    ),
    Entity.EDGES: listed("certname relationship source_type source_title target_type target_title"),
}
# A column for conditions only: one of the row's tags.
TAG = "tag"
# A column for conditions in AST form: a whole parameter; `parameters.x` may be a part of one.
PARAMETER = "parameter"
# Whether a row is of the newest report of its node.
LATEST = "latest_report?"
# Whether the node of a report or event is `active`, or was forgotten: `inactive`.
NODE_STATE = "node_state"
# Columns that conditions can use and results do not have.
_CONDITION_ONLY: Mapping[Entity, tuple[str, ...]] = {
    Entity.RESOURCES: (TAG,),
    Entity.FACT_PATHS: ("depth",),
    Entity.REPORTS: (LATEST, NODE_STATE),
    Entity.EVENTS: (LATEST, NODE_STATE),
}
# Columns that results have and conditions cannot use.
_RESULT_ONLY: Mapping[Entity, tuple[str, ...]] = {
    Entity.FACTSETS: ("facts",),
    Entity.REPORTS: ("metrics", "logs", "resource_events"),
    Entity.CATALOGS: ("resources", "edges"),
}
# Columns that are null in each row: a condition on one would look like an empty answer.
_UNKNOWN: Mapping[Entity, tuple[str, ...]] = {
    Entity.EVENTS: listed("property name old_value new_value message containment_path"),
}
# Columns with JSON values, which dotted fields may enter.
NESTED = frozenset({"facts", "trusted", "parameters"})
# Columns with lists, whose elements conditions compare.
LISTS = frozenset({"tags"})
# Columns with times in the form of `show_epoch`. The change of a time is not a new answer.
TIMES = frozenset(
    listed(
        "catalog_timestamp end_time expired facts_timestamp producer_timestamp receive_time "
        "report_receive_time report_timestamp run_end_time run_start_time start_time timestamp"
    )
)
# Columns with true or false.
BOOLEANS = frozenset(
    listed(
        "corrective_change exported latest_report? latest_report_corrective_change "
        "latest_report_noop latest_report_noop_pending noop noop_pending"
    )
)
# Columns with numbers, and facts, whose values may be numbers.
NUMBERS = frozenset(listed("depth failures line noops report_format skips successes total value"))

_WITHOUT_EXPIRY = "facts do not expire in localpuppet"
_ABSENT: Mapping[Entity, Mapping[str, str]] = {
    Entity.NODES: {"expires_facts": _WITHOUT_EXPIRY, "expires_facts_updated": _WITHOUT_EXPIRY},
}


# Entities whose rows are the different values of a column, with the entities that have it.
_VALUES = {Entity.ENVIRONMENTS: "environment", Entity.PRODUCERS: "producer"}
# Other relationships than by certname: entity → related entity → columns of both.
_RELATED: Mapping[Entity, Mapping[Entity, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    Entity.FACTS: {Entity.FACT_CONTENTS: (("certname", "name"), ("certname", "name"))},
    Entity.FACT_CONTENTS: {Entity.FACTS: (("certname", "name"), ("certname", "name"))},
    Entity.FACT_PATHS: {
        Entity.FACTS: (("name",), ("name",)),
        Entity.FACT_CONTENTS: (("path",), ("path",)),
    },
    Entity.REPORTS: {Entity.EVENTS: (("hash",), ("report",))},
    Entity.EVENTS: {Entity.REPORTS: (("report",), ("hash",))},
}


def check_column(entity: Entity, column: str) -> str:
    """Return a column's name if conditions or results of the entity have it."""
    if column in COLUMNS[entity] or column in _CONDITION_ONLY.get(entity, ()):
        return column
    reason = _ABSENT.get(entity, {}).get(column)
    if reason is not None:
        raise InvalidInputError(f"the field {column} of {entity.value} is not supported: {reason}")
    raise InvalidInputError(
        f"{column[:40]!r} is not a field of {entity.value}",
        hint=f"it has {', '.join(COLUMNS[entity])}",
    )


def check_in_condition(entity: Entity, column: str) -> None:
    """Reject a column that conditions cannot use."""
    if column in _UNKNOWN.get(entity, ()):
        raise InvalidInputError(
            f"a condition on the field {column} of {entity.value} is not supported: run summaries"
            " do not have it"
        )
    if column in _RESULT_ONLY.get(entity, ()):
        raise InvalidInputError(f"the field {column} of {entity.value} is for results only")


def check_in_result(entity: Entity, column: str) -> None:
    """Reject a column that results do not have."""
    if column in _CONDITION_ONLY.get(entity, ()):
        raise InvalidInputError(f"the field {column} of {entity.value} is for conditions only")


def related_columns(entity: Entity, other: Entity) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the columns of both entities by which an implicit subquery relates them."""
    if other in _RELATED.get(entity, {}):
        return _RELATED[entity][other]
    for item, columns in ((other, COLUMNS[entity]), (entity, COLUMNS[other])):
        column = _VALUES.get(item)
        if column in columns:
            return ((column,), ("name",)) if item is other else (("name",), (column,))
    if "certname" in COLUMNS[entity] and "certname" in COLUMNS[other]:
        return ("certname",), ("certname",)
    raise InvalidInputError(f"{entity.value} and {other.value} are not related", hint="use 'in'")
