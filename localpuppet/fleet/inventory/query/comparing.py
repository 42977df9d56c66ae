"""Compare two values, also with regular expressions within bounds of time and memory.

- RE2 takes time in proportion to the text, so no expression can block an agent ([ADR
  23](docs/adr/0023-queries.md)). It has no look-around and no back references.
- An expression that RE2 rejects results in a one-line error with the reason.
- A typed value equals values of its type only: `"8"` is not `8`, and `true` is not 1.
- A `Loose` value is a literal without a type. It equals the same text, a number of the same size
  (`12.40` and 12.4) and the words for booleans. It has an order only if both sides are numbers.
- A `VersionValue` is compared part by part, with digits as numbers: `10.2` is later than `9.4`, and
  `1.0rc1` earlier than `1.0`.
- A `TimeValue` is compared as a time, whatever the form of the text and its zone.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, TypeGuard

from localpuppet.base.errors import InvalidInputError, check_limit
from localpuppet.base.formats.strict_json import loads_again
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.query import query_limits, tree

Search = Callable[[str], bool]


def searching(expression: str) -> Search:
    """Return a function that searches an expression in the start of a text (`MAX_SUBJECT`)."""
    import re2  # 4 ms, for queries with an expression only

    limit, what = query_limits.MAX_EXPRESSION, "the regular expression is too long"
    check_limit(len(expression), limit, what=what, unit="characters")
    options = re2.Options()
    options.max_mem = query_limits.MAX_EXPRESSION_MEMORY
    options.dot_nl = True  # a line break is a character like others, as in PostgreSQL
    options.log_errors = False
    try:
        compiled = re2.compile(expression, options=options)
    except re2.error as error:
        reason = error.args[0] if error.args else b""
        message = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise InvalidInputError(
            f"the regular expression is refused: {one_line(message)}",
            hint="use RE2 syntax: no look-around, no back references",
        ) from error
    return lambda text: compiled.search(text[: query_limits.MAX_SUBJECT]) is not None


def matching_whole(expression: str) -> Search:
    """Return a function that matches an expression with a whole text."""
    searching(expression)  # it must be valid without the parentheses: `a)|(b` is not
    return searching(rf"\A(?:{expression})\z")


# Milliseconds from 1970 to the end of the last year that a text can have.
MAX_TIME = 253_402_300_799_999
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?\Z")
# Expressions that match no space, comma or colon: without `.`, `{`, negations and wide ranges.
_WITHIN_TOKEN = re.compile(
    r"(?:[\w%@/=~\"'#;<>!&|()?*+^$-]|\\[.dwbAz/-]"
    r"|\[(?:[a-z]-[a-z]|[A-Z]-[A-Z]|[0-9]-[0-9]|[\w./@%])+-?\])+\Z",
    re.ASCII,
)
_PART = re.compile(r"[0-9]+|[A-Za-z]+|~")
MAX_PARTS = 32


def compare(actual: Json, operator: tree.Operator, wanted: tree.Operand) -> bool | None:
    """Return the result of `EQUAL` or an operator of order; `None` if values are not comparable."""
    if isinstance(wanted, tree.Loose):
        return _loosely(actual, operator, wanted.text)
    if isinstance(wanted, tree.VersionValue):
        return _as_versions(actual, operator, wanted.text)
    if isinstance(wanted, tree.TimeValue):
        moment = instant(actual)
        if moment is None or operator is tree.Operator.EQUAL:
            return None if moment is None else moment == wanted.microseconds
        return tree.ORDERS[operator](moment, wanted.microseconds)
    if operator is tree.Operator.EQUAL:
        return same(actual, wanted)
    numbers = _number(actual) is not None and _number(wanted) is not None
    if numbers or (isinstance(actual, str) and isinstance(wanted, str)):
        return tree.ORDERS[operator](actual, wanted)
    return None


def test_of(condition: tree.Compare) -> Callable[[Json], bool | None]:
    """Return a function that compares a value, which is not null, as a condition does."""
    operator, wanted = condition.operator, condition.value
    test: Callable[[Json], bool | None]
    if (
        condition.field.column == tree.TAG and operator is tree.Operator.EQUAL
    ):  # tags are in lower case
        wanted = (
            tree.Loose(wanted.text.lower())
            if isinstance(wanted, tree.Loose)
            else str(wanted).lower()
        )
    if operator is tree.Operator.MATCH:
        test = _found(wanted)
    elif operator is tree.Operator.PATH_MATCH:
        test = _path_match(wanted)
    elif (
        operator is tree.Operator.EQUAL
        and condition.field.column in tree.NESTED
        and _is_json(wanted)
    ):
        test = lambda actual: contains(actual, wanted)  # noqa: E731 - one of four
    else:
        test = lambda actual: compare(actual, operator, wanted)  # noqa: E731 - one of four
    if not condition.contrary:
        return test

    def contrary(actual: Json) -> bool | None:
        verdict = test(actual)
        return None if verdict is None else not verdict

    return contrary


def _is_json(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str | list | dict)


def contains(actual: Json, wanted: object) -> bool:
    """Return whether a value contains another, like JSON in PostgreSQL."""
    if isinstance(wanted, list):
        return isinstance(actual, list) and all(
            any(contains(element, part) for element in actual) for part in wanted
        )
    if isinstance(wanted, bool | int | float | str):
        return same(actual, wanted)
    return actual is None and wanted is None


def _found(wanted: object) -> Callable[[Json], bool | None]:
    """Return a function that searches in a text, or in the JSON text of any other value."""
    expression = wanted.text if isinstance(wanted, tree.Loose) else wanted
    if not isinstance(expression, str):
        raise InvalidInputError("a regular expression must be a string")
    search = searching(expression)
    return lambda actual: search(actual if isinstance(actual, str) else json.dumps(actual))


def on_text(
    test: Callable[[Json], bool | None], match: tree.Compare
) -> Callable[[Any], bool | None]:
    """Return a function that searches in a value as the view stores it: JSON without spaces.

    Lists and hashes are searched in the text that PuppetDB has, with a space after `,` and `:`. If
    an expression matches no such character, it matches in both texts or in none.
    """
    wanted = match.value.text if isinstance(match.value, tree.Loose) else match.value
    is_within = isinstance(wanted, str) and _WITHIN_TOKEN.match(wanted) and not match.contrary
    search = searching(str(wanted)) if is_within else None

    def searched(text: str | None) -> bool | None:
        if text is None or text == "null":
            return None
        if search is not None and text[0] in "[{":
            return search(text)
        return test(loads_again(text.encode()))

    return searched


def _path_match(wanted: object) -> Callable[[Json], bool | None]:
    if not isinstance(wanted, list):
        raise InvalidInputError("'~>' compares with a list of regular expressions")
    steps = path_steps(wanted)
    return lambda actual: (
        isinstance(actual, list)
        and len(actual) == len(steps)
        and all(step(part) for step, part in zip(steps, actual, strict=True))
    )


def path_steps(wanted: Iterable[Json]) -> list[Callable[[Any], bool]]:
    """Return functions that match the steps of a path."""
    return [_path_step(step) for step in wanted]


def _path_step(wanted: Json) -> Callable[[Any], bool]:
    """Return a function that matches a path step: a number is an index, not a key."""
    if is_plain_number(wanted):
        return lambda actual: actual == wanted
    if not isinstance(wanted, str):
        raise InvalidInputError("a step of a path is a regular expression or an index")
    search, only_digits = searching(wanted), wanted.isdigit()
    return lambda actual: (
        not only_digits and search(str(actual)) if isinstance(actual, int) else search(actual)
    )


def values_of(field: tree.Field) -> Callable[[Json], Iterable[Json]] | None:
    """Return a function that returns the compared parts of a field's value; `None` if it is one.

    The value is the one before the first pattern of the path.
    """
    if field.column in (tree.TAG, "tags", "role"):
        return lambda value: value if isinstance(value, list) else ()
    path = field.path[len(exact_path(field)) :]
    if path:
        steps = [_step(step) for step in path]
        return lambda value: (leaf for _, leaf in leaves(value, steps))
    return members if field.members else None


def exact_path(field: tree.Field) -> tuple[str | int, ...]:
    """Return the path of a field up to its first pattern."""
    path: list[str | int] = []
    for step in field.path:
        if isinstance(step, tree.Pattern):
            break
        path.append(step)
    return tuple(path)


def members(value: Json) -> list[Json]:
    """Return the elements of an array, the keys of a hash, or a list with the scalar."""
    return list(value) if isinstance(value, list | dict) else [value]


def _step(step: tree.Step) -> Callable[[Any], bool]:
    if isinstance(step, tree.Pattern):
        search = matching_whole(step.expression)
        return lambda part: search(str(part))
    return lambda part: part == step


def leaves(
    value: Json, steps: list[Callable[[Any], bool]] | None = None
) -> Iterator[tuple[tuple[str | int, ...], Json]]:
    """Yield the scalars in a value with their paths, if its steps match; not recursive."""
    waiting: list[tuple[tuple[str | int, ...], Json]] = [((), value)]
    while waiting:
        place, inner = waiting.pop()
        if not isinstance(inner, dict | list):
            if steps is None or len(steps) == len(place):
                yield place, inner
        elif steps is None or len(place) < len(steps):
            parts = reversed([*(inner.items() if isinstance(inner, dict) else enumerate(inner))])
            matches = None if steps is None else steps[len(place)]
            waiting.extend(
                ((*place, key), part) for key, part in parts if matches is None or matches(key)
            )


def key(value: Json) -> str:
    """Return a key that equal values share; 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True, ensure_ascii=False)  # as SQLite's `json_quote`


def instant(value: Json) -> int | None:
    """Return a time in microseconds since 1970, UTC; `None` if the value is not a time.

    It is milliseconds since 1970, or ISO 8601, also without a zone (UTC), time or day.
    """
    if is_plain_number(value):
        return int(value * 1000) if abs(value) <= MAX_TIME else None
    if not isinstance(value, str) or len(value) > query_limits.MAX_NUMBER:
        return None
    text = value.strip()
    if len(text) in (4, 7):
        text += "-01-01"[: 10 - len(text)]  # a year, or a year and a month
    try:
        moment = datetime.fromisoformat(text)
        since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
        return since // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        return None


def parse_instant(value: Json) -> int:
    """Return a time of a query in microseconds since 1970, UTC."""
    moment = instant(value)
    if moment is None:
        raise InvalidInputError(
            f"{str(value)[:40]!r} is not a valid timestamp value", hint="2026-11-24T12:00:00Z"
        )
    return moment


def check_order(operator: tree.Operator, wanted: tree.Operand, *, where: str = "") -> None:
    """Reject an order comparison with a text."""
    number = isinstance(wanted, tree.Loose) and number_in(wanted.text) is not None
    if operator in tree.ORDERS and not number and not isinstance(wanted, tree.VersionValue):
        raise InvalidInputError(
            f"{operator.value} compares with a number or a version, not with a text",
            where=where,
            hint='write 12.4 or version("12.4")',
        )


def same(actual: Json, wanted: Json) -> bool:
    """Return whether two JSON values are equal; a boolean is not a number."""
    if isinstance(actual, bool) or isinstance(wanted, bool):
        return actual is wanted
    if isinstance(actual, list) and isinstance(wanted, list):
        return len(actual) == len(wanted) and all(map(same, actual, wanted))
    if isinstance(actual, dict) and isinstance(wanted, dict):
        return actual.keys() == wanted.keys() and all(same(actual[k], wanted[k]) for k in wanted)
    return actual == wanted


def number_in(text: str) -> int | float | None:
    """Return the number that a text represents, or `None`."""
    if len(text) > query_limits.MAX_NUMBER or not _NUMBER.match(text):
        return None
    return int(text) if text.lstrip("+-").isdigit() else float(text)


def is_number(value: Json) -> bool:
    """Return whether a value is a number, or a text that represents one."""
    return _number(value) is not None or (isinstance(value, str) and number_in(value) is not None)


def sort_key(value: Json) -> tuple[int, Any]:
    """Return a sort key for any value: texts, numbers, booleans, others, null, as PuppetDB."""
    if value is None:
        return (4, 0)
    if isinstance(value, bool):
        return (2, value)
    if isinstance(value, int | float):
        return (1, value)
    if isinstance(value, str):
        return (0, value)
    return (3, repr(value))


def is_plain_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a number; a boolean is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: object) -> int | float | None:
    return value if is_plain_number(value) else None


def _loosely(actual: Json, operator: tree.Operator, wanted: str) -> bool | None:
    if operator is tree.Operator.EQUAL:
        if isinstance(actual, str) and actual == wanted:
            return True
        if isinstance(actual, bool):
            return wanted == ("true" if actual else "false")
    left = number_in(actual) if isinstance(actual, str) else _number(actual)
    right = number_in(wanted)
    if left is None or right is None:
        return False if operator is tree.Operator.EQUAL else None
    return left == right if operator is tree.Operator.EQUAL else tree.ORDERS[operator](left, right)


def _as_versions(actual: Json, operator: tree.Operator, wanted: str) -> bool | None:
    number = _number(actual)
    text = actual if isinstance(actual, str) else None if number is None else str(number)
    if text is None:
        return None
    left, right = version_key(text), version_key(wanted)
    return left == right if operator is tree.Operator.EQUAL else tree.ORDERS[operator](left, right)


def version_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key for versions: letters before the end, the end before a number."""
    key: list[tuple[int, int, str]] = []
    for part in [*_PART.findall(text)[:MAX_PARTS], ""]:
        if part.isdigit():
            key.append((2, int(part[: query_limits.MAX_NUMBER]), ""))
            continue
        while key and key[-1] == (2, 0, ""):
            key.pop()  # 1.0 equals 1, and 1.0rc1 equals 1rc1
        key.append((0, 0, part) if part else (1, 0, ""))
    return tuple(key)
