"""Compare two values: numbers as numbers, and versions on request.

- A typed value equals values of its type only: `"8"` is not `8`, and `true` is not 1.
- A `Loose` value is a literal without a type. It equals the same text, a number of the same size
  (`12.40` and 12.4) and the words for booleans. It has an order only if both sides are numbers.
- A `VersionValue` is compared part by part, with digits as numbers: `10.2` is later than `9.4`, and
  `1.0rc1` earlier than `1.0`.
- A `TimeValue` is compared as a time, whatever the form of the text and its zone.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from operator import ge, gt, le, lt
from typing import Any, TypeGuard

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.query.tree import Loose, Operator, TimeValue, Value, VersionValue

MAX_NUMBER = 64
# Milliseconds from 1970 to the end of the last year that a text can have.
MAX_TIME = 253_402_300_799_999
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?\Z")
_PART = re.compile(r"[0-9]+|[A-Za-z]+|~")
_ORDER: dict[Operator, Callable[[Any, Any], bool]] = {
    Operator.LESS: lt,
    Operator.AT_MOST: le,
    Operator.GREATER: gt,
    Operator.AT_LEAST: ge,
}
MAX_PARTS = 32


def compare(actual: Json, operator: Operator, wanted: Value) -> bool | None:
    """Return the result of a comparison; `None` if the values are not comparable.

    Args:
        actual: The value of the row.
        operator: `EQUAL`, or one of the four of order.
        wanted: The value in the query.
    """
    if isinstance(wanted, Loose):
        return _loosely(actual, operator, wanted.text)
    if isinstance(wanted, VersionValue):
        return _as_versions(actual, operator, wanted.text)
    if isinstance(wanted, TimeValue):
        moment = instant(actual)
        if moment is None or operator is Operator.EQUAL:
            return None if moment is None else moment == wanted.microseconds
        return _ORDER[operator](moment, wanted.microseconds)
    if operator is Operator.EQUAL:
        return same(actual, wanted)
    numbers = _number(actual) is not None and _number(wanted) is not None
    if numbers or (isinstance(actual, str) and isinstance(wanted, str)):
        return _ORDER[operator](actual, wanted)
    return None


def instant(value: Json) -> int | None:
    """Return a time in microseconds since 1970, UTC; `None` if the value is not a time.

    Args:
        value: ISO 8601, also without a zone (UTC), without a time or with a year and month only; or
            milliseconds since 1970.
    """
    if is_plain_number(value):
        return int(value * 1000) if abs(value) <= MAX_TIME else None
    if not isinstance(value, str) or len(value) > MAX_NUMBER:
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
    """Return a time of a query in microseconds since 1970, UTC.

    Raises:
        InvalidInputError: The value is not a time.
    """
    moment = instant(value)
    if moment is None:
        raise InvalidInputError(
            f"{str(value)[:40]!r} is not a valid timestamp value", hint="2026-11-24T12:00:00Z"
        )
    return moment


def check_order(operator: Operator, wanted: Value, *, where: str = "") -> None:
    """Reject an order comparison with a text.

    Raises:
        InvalidInputError: The operator is one of order, and the value neither number nor version.
    """
    number = isinstance(wanted, Loose) and number_in(wanted.text) is not None
    if operator in _ORDER and not number and not isinstance(wanted, VersionValue):
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
    if len(text) > MAX_NUMBER or not _NUMBER.match(text):
        return None
    return int(text) if text.lstrip("+-").isdigit() else float(text)


def is_number(value: Json) -> bool:
    """Return whether a value is a number, or a text that represents one."""
    return _number(value) is not None or (isinstance(value, str) and number_in(value) is not None)


def sort_key(value: Json) -> tuple[int, Any]:
    """Return a sort key for any value: numbers, texts, booleans, others, null."""
    if value is None:
        return (4, 0)
    if isinstance(value, bool):
        return (2, value)
    if isinstance(value, int | float):
        return (0, value)
    if isinstance(value, str):
        return (1, value)
    return (3, repr(value))


def is_plain_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a number; a boolean is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: object) -> int | float | None:
    return value if is_plain_number(value) else None


def _loosely(actual: Json, operator: Operator, wanted: str) -> bool | None:
    if operator is Operator.EQUAL:
        if isinstance(actual, str) and actual == wanted:
            return True
        if isinstance(actual, bool):
            return wanted == ("true" if actual else "false")
    left = number_in(actual) if isinstance(actual, str) else _number(actual)
    right = number_in(wanted)
    if left is None or right is None:
        return False if operator is Operator.EQUAL else None
    return left == right if operator is Operator.EQUAL else _ORDER[operator](left, right)


def _as_versions(actual: Json, operator: Operator, wanted: str) -> bool | None:
    number = _number(actual)
    text = actual if isinstance(actual, str) else None if number is None else str(number)
    if text is None:
        return None
    left, right = version_key(text), version_key(wanted)
    return left == right if operator is Operator.EQUAL else _ORDER[operator](left, right)


def version_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key for versions: letters before the end, the end before a number."""
    key: list[tuple[int, int, str]] = []
    for part in [*_PART.findall(text)[:MAX_PARTS], ""]:
        if part.isdigit():
            key.append((2, int(part[:MAX_NUMBER]), ""))
            continue
        while key and key[-1] == (2, 0, ""):
            key.pop()  # 1.0 equals 1, and 1.0rc1 equals 1rc1
        key.append((0, 0, part) if part else (1, 0, ""))
    return tuple(key)
