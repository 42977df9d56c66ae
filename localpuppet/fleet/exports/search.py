"""Conditions of collectors, and what they choose: `File <<| tag == web and owner != root |>>`.

- The operators are `==`, `!=`, `and`, `or`; `!=` is true if `==` is false.
- `tag` means any tag of the resource and `title` its title. An array of tags matches if one of them
  does. Tags are compared without case.
- All other values compare as in PuppetDB (`scripts/puppetdb` tests both): texts are case-sensitive,
  1 is not 1.0, an array or a hash equals only the same one, and nothing equals `undef`.

Example: `Search.parse([["tag", "==", "web"], "and", ["owner", "!=", "root"]])`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.values import Json
from localpuppet.base.value import Value
from localpuppet.fleet.exports.collect_policy import CollectMode, CollectPolicy, line_for
from localpuppet.fleet.exports.resource import ExportedResource, Offer, guard

MAX_CONDITIONS = 1000
MAX_DEPTH = 60

_WHERE = "collector"
_SHOWN = 80
# Bytes of JSON for one collector. The limit for one reply to Puppet is larger (`exports.rb`).
MAX_TAKEN = 64 * 1024 * 1024
# Left-out resources listed for one collector; the rest is counted.
MAX_LEFT_OUT = 1000


class Join(StrEnum):
    """The operator that joins two conditions."""

    AND = "and"
    OR = "or"


class Comparison(Value):
    """A comparison of a field (`tag`, `title`, or a parameter) with a value by `==` or `!=`."""

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


class JoinedConditions(Value):
    """Two conditions joined by an operator."""

    left: "Condition"
    join: Join
    right: "Condition"

    def matches(self, resource: ExportedResource) -> bool:
        """Return whether a resource matches."""
        if self.join is Join.AND:
            return self.left.matches(resource) and self.right.matches(resource)
        return self.left.matches(resource) or self.right.matches(resource)


Condition = Comparison | JoinedConditions


class Search(Value):
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
    """Return a condition that `Search.parse` accepted, in Puppet's syntax: `tag == "web"`."""
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


class TakenResource(Value):
    """A resource that a collector takes."""

    node: str
    resource: ExportedResource
    how: CollectMode
    dropped: tuple[str, ...]


class RejectedResource(Value):
    """A resource that a collector leaves out."""

    node: str
    resource: str
    reason: str


class CollectorResult(Value):
    """What a collector takes, by title and node, and the first `MAX_LEFT_OUT` left out."""

    taken: tuple[TakenResource, ...]
    left_out: tuple[RejectedResource, ...]
    more_left_out: int = 0


def choose(
    offers: Iterable[Offer], kind: str, search: Search, *, me: str, policy: CollectPolicy
) -> CollectorResult:
    """Return which offers of its type a collector of this node takes, and which it leaves out."""
    taken: list[TakenResource] = []
    left_out: list[RejectedResource] = []
    more_left_out = 0
    size, sizes = 0, Counter[str]()
    named = search.named()
    for offer in offers:
        resource = offer.resource
        if offer.node == me or resource.type != kind or not search.matches(resource):
            continue
        if not policy.names(kind):
            raise InvalidInputError(
                f"{offer.node} exports it, and no policy line names {kind}",
                where=_short(resource.ref),
                hint="'localpuppet inventory exports --policy' prints a line for collect.policy: "
                + line_for([offer.node], kind).replace("\t", "<TAB>"),
            )
        chosen = _taken(offer, policy, named)
        if isinstance(chosen, TakenResource):
            taken.append(chosen)
            sizes[offer.node] += offer.size
            size += offer.size
            if size > MAX_TAKEN:
                raise _too_large(kind, sizes)
        elif len(left_out) < MAX_LEFT_OUT:
            left_out.append(chosen)
        else:
            more_left_out += 1
    _refuse_clash(taken)
    return CollectorResult(
        taken=tuple(taken), left_out=tuple(left_out), more_left_out=more_left_out
    )


def _taken(
    offer: Offer, policy: CollectPolicy, named: Mapping[str, Json]
) -> TakenResource | RejectedResource:
    node, resource = offer.node, offer.resource
    how = policy.decide(node, resource.type, resource.title)
    if how is None:
        return RejectedResource(
            node=node, resource=resource.ref, reason="no policy line covers this signer and title"
        )
    if how is CollectMode.AS_IS:
        return TakenResource(node=node, resource=resource, how=how, dropped=())
    guarded = guard(resource, named)
    if guarded.reason is not None:
        reason = f"{guarded.reason}, which a guarded line does not take (an as-is line does)"
        return RejectedResource(node=node, resource=resource.ref, reason=reason)
    kept = replace(resource, parameters=guarded.parameters)
    return TakenResource(node=node, resource=kept, how=how, dropped=guarded.dropped)


def _refuse_clash(taken: Sequence[TakenResource]) -> None:
    seen: dict[str, TakenResource] = {}
    for resource in taken:
        other = seen.setdefault(resource.resource.title, resource)
        if other is not resource:
            raise InvalidInputError(
                f"is exported by {_who(other)} and by {_who(resource)}",
                where=_short(resource.resource.ref),
                hint="give each a unique title, for example with the node's name",
            )


def _too_large(kind: str, sizes: Counter[str]) -> InvalidInputError:
    ((node, size),) = sizes.most_common(1)
    return InvalidInputError(
        f"are too large: more than {MAX_TAKEN // 1024**2} MiB of {kind}, and of one node up to"
        f" {-(-size // 1024)} KiB ({node})",
        hint="filter by a tag, or remove signers from policies/collect.policy",
    )


def _who(resource: TakenResource) -> str:
    return (
        f"{resource.node} ({resource.resource.place})" if resource.resource.place else resource.node
    )


def _short(text: str) -> str:
    shown = one_line(text)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
