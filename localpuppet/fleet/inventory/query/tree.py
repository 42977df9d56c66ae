"""A question about nodes, as a tree: what every query language here is turned into.

Owns: the forms of a question, and the limits of its size. Refuses to know: how a language is
written, and how a question is answered (`evaluating`).

- A question selects from an *entity*: rows, of which a node has one (`inventory`, `nodes`) or many
  (`facts`, `fact_contents`, `resources`).
- A condition is true, false or unknown, as in SQL: what compares with a value that a row does not
  have is unknown, `Not` leaves that unknown, and a row counts only where its condition is true.

Example: `role=web` is `Compare(field=ROLE, operator=Operator.EQUAL, value=Loose("web"))`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.values import Json

MAX_TEXT = 64 * 1024
MAX_DEPTH = 50
MAX_CONDITIONS = 500


class Entity(Enum):
    """What rows are of; the names are PuppetDB's."""

    INVENTORY = "inventory"
    NODES = "nodes"
    FACTS = "facts"
    FACT_CONTENTS = "fact_contents"
    RESOURCES = "resources"


class Operator(Enum):
    """How a field's value is compared; the words are PuppetDB's."""

    EQUAL = "="
    LESS = "<"
    AT_MOST = "<="
    GREATER = ">"
    AT_LEAST = ">="
    MATCH = "~"
    PATH_MATCH = "~>"


@dataclass(frozen=True, slots=True)
class Pattern:
    """A step of a path that every key or index takes whose text the expression matches as a whole.

    Attributes:
        expression: A regular expression.
    """

    expression: str


Step = str | int | Pattern
_INDEX = re.compile(r"[0-9]{1,6}\Z")


def parse_step(text: str) -> str | int:
    """Return a step of a path as it is written: what has the form of an index is one."""
    return int(text) if _INDEX.match(text) else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A place in a row.

    Attributes:
        column: The column.
        path: Where in the column's value; with a `Pattern` in it, several places.
        text: The field as it was written: the key of a result that projects to it.
        members: Whether an array has its elements as values, and a hash its keys; a comparison with
            such a field is never unknown.
    """

    column: str
    path: tuple[Step, ...] = ()
    text: str = field(default="", compare=False)
    members: bool = False


ROLE = Field(column="role")
CERTNAME = Field(column="certname", text="certname")


@dataclass(frozen=True, slots=True)
class Loose:
    """A value that was written without a type: a number where the fact's text is one, too.

    Attributes:
        text: As it was written.
    """

    text: str


@dataclass(frozen=True, slots=True)
class Version:
    """A value that is compared as versions are: part by part, parts of digits as numbers.

    Attributes:
        text: As it was written.
    """

    text: str


Value = Json | Loose | Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare:
    """A field's value compares with a value.

    Attributes:
        field: The field. Where its path has a `Pattern`, one of its places is enough.
        operator: How.
        value: With what: a regular expression for `MATCH`, a list of steps for `PATH_MATCH`.
        contrary: Whether there must be a value for which the comparison is false.
    """

    field: Field
    operator: Operator
    value: Value
    contrary: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IsNull:
    """A field has no value, or has one.

    Attributes:
        field: The field.
        wanted: Whether it must have none.
    """

    field: Field
    wanted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OneOf:
    """A field's value is one of a list.

    Attributes:
        field: The field.
        values: The list.
    """

    field: Field
    values: tuple[Json, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InSelect:
    """The values of fields are together in a row that another question finds.

    Attributes:
        fields: The fields.
        select: The other question; it projects to as many fields.
    """

    fields: tuple[Field, ...]
    select: "Select"


@dataclass(frozen=True, slots=True, kw_only=True)
class Related:
    """The row's node has a row of another entity for which a condition is true.

    Attributes:
        entity: The other entity.
        where: The condition on its rows.
        same_fact: Whether both rows must be of one fact, besides.
    """

    entity: Entity
    where: "Condition"
    same_fact: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Not:
    """A condition is false.

    Attributes:
        part: The condition.
    """

    part: "Condition"


@dataclass(frozen=True, slots=True, kw_only=True)
class And:
    """All of some conditions are true; with none of them always so.

    Attributes:
        parts: The conditions.
    """

    parts: tuple["Condition", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Or:
    """One of some conditions is true.

    Attributes:
        parts: The conditions.
    """

    parts: tuple["Condition", ...]


Condition = Compare | IsNull | OneOf | InSelect | Related | Not | And | Or
ALL = And(parts=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How many rows a group has.

    Attributes:
        field: Counts only the rows that have a value there; `None` counts all.
    """

    field: Field | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """How rows are sorted.

    Attributes:
        field: By which field.
        descending: Whether the greatest is first.
    """

    field: Field
    descending: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Select:
    """A question.

    Attributes:
        entity: What it asks for.
        where: Which rows count.
        columns: What the result has of each; `None` for the whole row.
        group_by: Rows with the same values in these fields become one.
        order: How the result is sorted; by the node's name first where it is empty.
        limit: At most so many rows.
        offset: So many rows are left out at the beginning.
    """

    entity: Entity
    where: Condition = ALL
    columns: tuple[Field | Count, ...] | None = None
    group_by: tuple[Field, ...] = ()
    order: tuple[Order, ...] = ()
    limit: int | None = None
    offset: int = 0


def check_text(text: str) -> str:
    """Return a query's text if it may be parsed at all.

    Raises:
        InvalidInputError: It is too long, or has a lone surrogate, or a control character other
            than white space.
    """
    if len(text) > MAX_TEXT:
        raise InvalidInputError(
            f"the query is too long: {len(text)} characters, the limit is {MAX_TEXT}"
        )
    for place, character in enumerate(text, 1):
        if (character < " " and character not in "\t\n\r") or "\x7f" <= character <= "\x9f":
            kind = "control character"
        elif "\ud800" <= character <= "\udfff":
            kind = "lone surrogate"
        else:
            continue
        raise InvalidInputError(
            f"the query has a {kind} (U+{ord(character):04X}) at character {place}"
        )
    return text


def check_nesting(value: object) -> None:
    """Refuse arrays and mappings that are nested too deep to be walked by recursion.

    Raises:
        InvalidInputError: They are.
    """
    waiting = [(value, 1)]
    while waiting:
        one, depth = waiting.pop()
        if depth > 2 * MAX_DEPTH:
            raise InvalidInputError("the query is nested too deep")
        if isinstance(one, list | tuple):
            waiting.extend((part, depth + 1) for part in one)
        elif isinstance(one, dict):
            waiting.extend((part, depth + 1) for part in one.values())


def check_size(condition: Condition) -> Condition:
    """Return a condition that is not too large to be answered.

    Raises:
        InvalidInputError: It has too many parts, or they are nested too deep.
    """
    for count, (_, depth) in enumerate(walk(condition), 1):
        if depth > MAX_DEPTH:
            raise InvalidInputError(f"the query is nested too deep: more than {MAX_DEPTH} levels")
        if count > MAX_CONDITIONS:
            raise InvalidInputError(f"the query has more than {MAX_CONDITIONS} conditions")
    return condition


def walk(condition: Condition, depth: int = 1) -> Iterator[tuple[Condition, int]]:
    """Yield a condition and every one inside of it, each with its depth; no recursion."""
    waiting = [(condition, depth)]
    while waiting:
        one, level = waiting.pop()
        yield one, level
        if isinstance(one, And | Or):
            waiting.extend((part, level + 1) for part in one.parts)
        elif isinstance(one, Not):
            waiting.append((one.part, level + 1))
        elif isinstance(one, Related):
            waiting.append((one.where, level + 1))
        elif isinstance(one, InSelect):
            waiting.append((one.select.where, level + 1))
