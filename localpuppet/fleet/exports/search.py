"""Conditions of collectors: `File <<| tag == web and owner != root |>>`.

- The operators are `==`, `!=`, `and`, `or`; `!=` is true if `==` is false.
- `tag` means any tag of the resource and `title` its title. An array of tags matches if one of them
  does. Tags are compared without case.
- All other values compare as in PuppetDB (`scripts/puppetdb` tests both): texts are case-sensitive,
  1 is not 1.0, an array or a hash equals only the same one, and nothing equals `undef`.

Example: `Search.parse([["tag", "==", "web"], "and", ["owner", "!=", "root"]])`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.values import Json
from localpuppet.fleet.exports.resource import ExportedResource

MAX_CONDITIONS = 1000
MAX_DEPTH = 60

_WHERE = "collector"


class Join(StrEnum):
    """The operator that joins two conditions."""

    AND = "and"
    OR = "or"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A comparison of a field with a value.

    Attributes:
        name: `tag`, `title`, or a parameter.
        equal: Whether the operator is `==`; otherwise `!=`.
        value: The value.
    """

    name: str
    equal: bool
    value: Json

    def matches(self, resource: ExportedResource) -> bool:
        """Return whether a resource matches."""
        return self._is(resource) is self.equal

    def _is(self, resource: ExportedResource) -> bool:
        if self.name == "tag":
            wanted = self.value if isinstance(self.value, list) else [self.value]
            return any(str(value).lower() in resource.tags for value in wanted)
        actual = resource.title if self.name == "title" else resource.parameters.get(self.name)
        return actual is not None and _same(actual, self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedConditions:
    """Two conditions joined by an operator.

    Attributes:
        left, right: The conditions.
        join: The operator.
    """

    left: "Condition"
    join: Join
    right: "Condition"

    def matches(self, resource: ExportedResource) -> bool:
        """Return whether a resource matches."""
        if self.join is Join.AND:
            return self.left.matches(resource) and self.right.matches(resource)
        return self.left.matches(resource) or self.right.matches(resource)


Condition = Comparison | JoinedConditions


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The condition of a collector; `None` matches all resources."""

    condition: Condition | None

    @classmethod
    def parse(cls, raw: Json) -> "Search":
        """Return the search with a condition in Puppet's JSON form.

        Args:
            raw: `[NAME, "==", VALUE]`, `[CONDITION, "and", CONDITION]`, or null.

        Raises:
            InvalidInputError: The condition has another form or too many parts.
        """
        return cls(condition=None if raw is None else _parse(raw, 0, [0]))

    def matches(self, resource: ExportedResource) -> bool:
        """Return whether a resource matches."""
        return self.condition is None or self.condition.matches(resource)

    def named(self) -> Mapping[str, Json]:
        """Return the parameter values that every match has, as written in the collector."""
        return _named(self.condition)

    def tag(self) -> str | None:
        """Return a tag that every match has; `None` if there is no such tag."""
        return _tag(self.condition)


def show(raw: Json) -> str:
    """Return a condition in Puppet's syntax: `tag == "web" and owner != "root"`.

    Args:
        raw: A condition that `Search.parse` accepted.
    """
    if not isinstance(raw, list):
        return ""
    left, operator, right = raw
    if isinstance(left, list):
        return f"({show(left)}) {operator} ({show(right)})"
    return f"{left} {operator} {_shown(right)}"


def as_query(kind: str, raw: Json) -> list[Json]:
    """Return the query for resources, in PuppetDB's array form, that matches a collector.

    The query is case-sensitive where a collector is not, and ignores the collect policy: it finds
    the nodes that a collector may take resources from.

    Args:
        kind: The type.
        raw: A condition that `Search.parse` accepted.
    """
    whole: list[Json] = ["and", ["=", "type", kind], ["=", "exported", True]]
    return whole if raw is None else [*whole, _as_condition(raw)]


def _as_condition(raw: Json) -> list[Json]:
    if not isinstance(raw, list) or len(raw) != 3:
        raise InvalidInputError("is not a condition of a collector", where=_WHERE)
    left, operator, right = raw
    if operator in tuple(Join):
        return [operator, _as_condition(left), _as_condition(right)]
    if left == "tag" and isinstance(right, list) and right:
        tags: list[Json] = [["=", "tag", str(value)] for value in right]
        test: list[Json] = ["or", *tags]
    else:
        field: Json = left if left in ("tag", "title") else ["parameter", left]
        test = ["=", field, right]
    return ["not", test] if operator == "!=" else test


def _shown(value: Json) -> str:
    if value is None:
        return "undef"
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, dict):
        pairs = (f"{_shown(key)} => {_shown(item)}" for key, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _parse(raw: Json, depth: int, counted: list[int]) -> Condition:
    counted[0] += 1
    if depth > MAX_DEPTH or counted[0] > MAX_CONDITIONS:
        raise InvalidInputError("has too many conditions", where=_WHERE)
    if not isinstance(raw, list) or len(raw) != 3:
        raise InvalidInputError("is not a condition of a collector", where=_WHERE)
    left, operator, right = raw
    if operator in tuple(Join):
        return JoinedConditions(
            left=_parse(left, depth + 1, counted),
            join=Join(str(operator)),
            right=_parse(right, depth + 1, counted),
        )
    if operator not in ("==", "!=") or not isinstance(left, str):
        raise InvalidInputError("is an unsupported comparison", where=_WHERE, hint="use == or !=")
    if isinstance(right, dict) and left in ("tag", "title"):
        raise InvalidInputError(f"compares a {left} with a hash", where=_WHERE)
    return Comparison(name=left, equal=operator == "==", value=right)


def _named(condition: Condition | None) -> dict[str, Json]:
    if isinstance(condition, JoinedConditions):
        if condition.join is Join.OR:
            return {}
        return {**_named(condition.left), **_named(condition.right)}
    if condition is None or not condition.equal:
        return {}
    return {condition.name: condition.value}


def _tag(condition: Condition | None) -> str | None:
    if isinstance(condition, JoinedConditions):
        if condition.join is Join.OR:
            return None
        return _tag(condition.left) or _tag(condition.right)
    if condition is None or condition.name != "tag" or not condition.equal:
        return None
    return condition.value.lower() if isinstance(condition.value, str) else None


def _same(left: Json, right: Json) -> bool:
    """Return whether both are the same JSON value; 1 equals neither 1.0 nor true."""
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    return type(left) is type(right) and left == right
