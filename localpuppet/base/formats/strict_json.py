"""Strict JSON: bytes become values that every reader interprets alike, and compact text again.

Rejected, though Python's reader accepts it: duplicate keys, NaN and infinities, integers beyond 64
bits, lone surrogates. Documents of users are YAML; `strict_yaml` reads those.

- A result can be written as UTF-8 JSON again.
- An error is one printable line with at most 60 characters of the input, escaped.
- The depth is checked before parsing: at some depth Python's parsers raise or crash the process.

Example: `members({"ok": True, "answer": JsonText(text="[1,2]")})` is `{"ok":true,"answer":[1,2]}`.
"""

import json
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Any, NoReturn

from localpuppet.base.errors import InvalidInputError, check_limit
from localpuppet.base.formats.values import Json, type_names
from localpuppet.base.value import Value

# Ruby's JSON has the same limit. A user document has at most 50 levels, and is embedded in records
# and reports.
MAX_DEPTH = 100
# Bytes split at their quotes in one step: each piece takes ten times its size.
_PART = 64 * 1024
_SMALL = 8 * 1024
# An opening bracket counts 1, a closing one -1 (signed byte).
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
# Each value except the first follows one of these.
_BEFORE_VALUES = (b",", b"[", b"{")
_NO_BRACKETS = bytes(set(range(256)) - set(b'[{]}"'))
_NO_VALUES = bytes(set(range(256)) - set(b'[{,"'))
_MAX_DIGITS = 20  # CPython raises its own ValueError for more than 4300


def loads(data: bytes | str, *, values: int | None = None) -> Any:  # noqa: ANN401 - as json.loads: the caller knows the form
    """Return the value in `data`: JSON of this program or of a program that it started.

    Accepts duplicate keys, and long integers without `values`, as `json.loads` does.

    Args:
        data: JSON; bytes are UTF-8.
        values: Maximum number of values, as of `parse_object`, if others may have written it: then
            NaN, infinite numbers, integers beyond 64 bits and lone surrogates are refused, too.

    Raises:
        ValueError: The data is not JSON, has more than `MAX_DEPTH` levels, or too many values.
    """
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    if _is_deep(raw):
        raise ValueError(f"nested too deep: more than {MAX_DEPTH} levels")
    text = data if isinstance(data, str) else data.decode("utf-8")
    if values is None:
        return json.loads(text)
    if has_more_values(raw, values):
        raise ValueError(f"more than {values} values")
    value = json.loads(
        text, parse_constant=_refuse_constant, parse_int=_integer, parse_float=_finite
    )
    if "\\u" in text:
        _encode(value)
    return value


def loads_again(data: bytes) -> Any:  # noqa: ANN401 - as `loads`
    """Return the value in `data` without a depth check: `parse_object` has accepted it before.

    Raises:
        ValueError: The data is not JSON: it was damaged since.
    """
    return json.loads(data)


def _is_deep(data: bytes) -> bool:
    # Counting a large text takes a third of the time of the rest, and seldom saves it.
    if len(data) < _SMALL and data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return False
    steps = array("b", _outside_strings(data, _NO_BRACKETS).translate(_STEPS))
    return max(accumulate(steps), default=0) > MAX_DEPTH


def has_more_values(data: bytes, most: int) -> bool:
    """Return whether JSON has more than some values, without parsing it; see `parse_object`."""
    if len(data) < most or sum(map(data.count, _BEFORE_VALUES)) < most:
        return False
    return len(_outside_strings(data, _NO_VALUES)) >= most


def _outside_strings(data: bytes, drop: bytes) -> bytes:
    """Return the bytes outside of strings except some."""
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Most strings have no byte left then: two quotes side by side.
    data = data.translate(None, drop).replace(b'""', b"")
    pieces, inside = [], 0
    for start in range(0, len(data), _PART):
        parts = data[start : start + _PART].split(b'"')
        pieces.append(b"".join(parts[inside::2]))
        inside ^= len(parts) % 2 == 0
    return b"".join(pieces)


def parse_object(
    data: bytes,
    *,
    where: str,
    limit: int,
    values: int | None = None,
    fast: Callable[[bytes], Json] = lambda _: None,
) -> dict[str, Json]:
    """Return the object in `data`.

    Args:
        data: UTF-8 JSON without a byte order mark.
        where: What it is, for messages ("trigger").
        values: Maximum number of values (empty lists and mappings count twice); `None` for no
            limit. A value of three bytes may take a hundred bytes of memory.
        fast: Returns the same value as this function, or `None` if it cannot.

    Raises:
        InvalidInputError: The data is too large, too deep, not UTF-8, not JSON, ambiguous, or not
            an object.
    """
    check_limit(len(data), limit, where=where)
    if _is_deep(data):
        raise InvalidInputError(f"is nested too deep: more than {MAX_DEPTH} levels", where=where)
    if values is not None and has_more_values(data, values):
        raise InvalidInputError(f"has more than {values} values", where=where)
    value = fast(data)
    if value is None:
        value = _read_strictly(data, where)
    if not isinstance(value, dict):
        raise InvalidInputError(
            f"is malformed: a {type_names[type(value)]}, not a JSON object", where=where
        )
    return value


def _read_strictly(data: bytes, where: str) -> Json:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"is malformed: byte {error.start} is not UTF-8", where=where
        ) from error
    try:
        value: Json = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_int=_integer,
            parse_float=_finite,
        )
        # Only an escape can produce a lone surrogate; UTF-8 cannot encode one.
        if "\\u" in text:
            _encode(value)
    except InvalidInputError as error:
        raise error.at(where) from error
    except UnicodeEncodeError as error:
        raise InvalidInputError("is malformed: it has a lone surrogate", where=where) from error
    except ValueError as error:
        raise InvalidInputError(f"is not JSON: {error}", where=where) from error
    return value


def _encode(value: Json) -> None:
    """Encode every string, one at a time: encoding a copy of all takes four times the memory."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            item.encode()
        elif isinstance(item, dict):
            waiting += [*item, *item.values()]
        elif isinstance(item, list):
            waiting += item


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    members = dict(pairs)
    if len(members) != len(pairs):
        twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise InvalidInputError(f"is malformed JSON: duplicate key {twice[:60]!r}")
    return members


def _refuse_constant(text: str) -> NoReturn:
    raise InvalidInputError(f"is malformed: {text} is not JSON")


def _integer(text: str) -> int:
    number = int(text) if len(text) <= _MAX_DIGITS else 2**64
    if not -(2**63) <= number < 2**63:
        raise InvalidInputError(f"is malformed: the integer {text[:24]} is too large for 64 bits")
    return number


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise InvalidInputError(f"is malformed: the number {text[:24]} is too large")
    return number


# Returns a value as JSON in ASCII, without optional spaces. Looking for cycles takes a fifth more.
compact = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_sorted_keys = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def canonical(value: object) -> bytes:
    """Return a value as the JSON that is digested: ASCII, sorted keys, no optional spaces."""
    return _sorted_keys(value).encode("ascii")


class JsonText(Value):
    """A value that is JSON text already."""

    text: str


def members(values: Mapping[str, object], *, end: str = "") -> str:
    """Return an object as JSON.

    Args:
        values: Its members; a `JsonText` is inserted unchanged.
        end: The text after the object, such as a newline.
    """
    pieces: list[str] = []
    for key, value in values.items():
        pieces += ("," if pieces else "{", compact(key), ":", _text(value))
    # One join: copying a large text takes as long as writing it.
    return "".join([*(pieces or "{"), "}", end])


def elements(texts: Iterable[str]) -> str:
    """Return a list as JSON."""
    pieces: list[str] = []
    for text in texts:
        pieces += ("," if pieces else "[", text)
    return "".join([*(pieces or "["), "]"])


def _text(value: object) -> str:
    return value.text if isinstance(value, JsonText) else compact(value)
