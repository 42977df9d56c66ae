"""Strict JSON: bytes that somebody else sent become values on which every reader agrees.

Owns: bytes → JSON values, with what Python's reader lets pass refused: duplicate keys, NaN and
infinities, integers beyond 64 bits, lone surrogates. Refuses to know: what the document means, and
what our users write (that is YAML, read elsewhere).

Invariants: what is returned can be written as UTF-8 JSON again; a refusal is one printable line
that quotes at most 60 characters of the input, escaped; how deep a document may be is counted here,
before it is parsed: some parsers of Python raise at some depth, others end the process.
"""

import json
import re
from array import array
from collections import Counter
from itertools import accumulate
from typing import Any, NoReturn, cast

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.values import Json, type_names

# Ruby's JSON stops at the same depth. What a user writes has 50 levels at the most, and is found
# inside of records and reports again.
MAX_DEPTH = 100
# Matches also a string without an end, so that nobody looks for the end from each quote anew.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+["\\]?', re.DOTALL)
# So many strings are taken out at once: each leaves a piece behind, of ten times its size.
_SOME = re.compile(rb'(?:[^"]*+"[^"\\]*+(?:\\.[^"\\]*+)*+["\\]?){1,4096}', re.DOTALL)
# So many bytes are split at their quotes at once, for the same reason.
_PART = 64 * 1024
# An opening bracket is 1, a closing one -1 (as a signed byte); all other bytes are left out.
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
# Each value but the first comes after one of these.
_BEFORE_VALUES = (b",", b"[", b"{")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))
_MAX_DIGITS = 20  # CPython refuses more than 4300 with a ValueError of its own


def loads(data: bytes | str) -> Any:  # noqa: ANN401 - as json.loads: the caller knows the form
    """Return the value in `data`: JSON of this program or of one that is started by it.

    Duplicate keys, NaN and long integers pass, as they do in Python's own `json.loads`.

    Args:
        data: JSON; bytes are UTF-8.

    Raises:
        ValueError: It is not JSON, or has more than `MAX_DEPTH` levels.
    """
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    if _is_deep(raw):
        raise ValueError(f"nested too deep: more than {MAX_DEPTH} levels")
    return json.loads(data if isinstance(data, str) else data.decode("utf-8"))


def loads_again(data: bytes) -> Any:  # noqa: ANN401 - as `loads`
    """Return the value in `data`, which `parse_object` has taken before: its depth is known.

    Raises:
        ValueError: It is not JSON: it was damaged since.
    """
    return json.loads(data)


def _is_deep(data: bytes) -> bool:
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return False
    steps = array("b", _outside_strings(data).translate(_STEPS, _NO_BRACKETS))
    return max(accumulate(steps), default=0) > MAX_DEPTH


def _has_more_values(data: bytes, most: int) -> bool:
    if sum(map(data.count, _BEFORE_VALUES)) < most:
        return False
    return sum(map(_outside_strings(data).count, _BEFORE_VALUES)) >= most


def _outside_strings(data: bytes) -> bytes:
    if b"\\" not in data:
        return _between_quotes(data)
    pieces, place = [], 0
    while (some := _SOME.match(data, place)) is not None:
        pieces.append(_STRING.sub(b"", some[0]))
        place = some.end()
    return b"".join([*pieces, data[place:]])


def _between_quotes(data: bytes) -> bytes:
    """Return what is outside of strings where no quote is escaped: in a third of the time."""
    found, inside = [], 0
    for start in range(0, len(data), _PART):
        pieces = data[start : start + _PART].split(b'"')
        found.append(b"".join(pieces[inside::2]))
        inside ^= len(pieces) % 2 == 0
    return b"".join(found)


def parse_object(
    data: bytes, *, where: str, limit: int, values: int | None = None
) -> dict[str, Json]:
    """Return the object in `data`.

    Args:
        data: UTF-8 JSON, without a byte order mark.
        where: What it is, for messages ("trigger").
        limit: The most bytes that it may have.
        values: The most values that it may have, empty lists and mappings twice; `None` for any
            number. Each takes some hundred bytes of memory, and may be written in three.

    Raises:
        InvalidInputError: It is larger, too deep, not UTF-8, not JSON, ambiguous, or not an
            object.
    """
    if len(data) > limit:
        raise InvalidInputError(
            f"is too large: {len(data)} bytes, the limit is {limit}", where=where
        )
    if _is_deep(data):
        raise InvalidInputError(f"is nested too deep: more than {MAX_DEPTH} levels", where=where)
    if values is not None and _has_more_values(data, values):
        raise InvalidInputError(f"has more than {values} values", where=where)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"is malformed: byte {error.start} is not UTF-8", where=where
        ) from error
    try:
        value = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_int=_integer,
            parse_float=_finite,
        )
        # Only an escape can make a lone surrogate; UTF-8 has no form for one.
        if "\\u" in text:
            _encode(value)
    except InvalidInputError as error:
        raise error.at(where) from error
    except UnicodeEncodeError as error:
        raise InvalidInputError("is malformed: a lone surrogate", where=where) from error
    except ValueError as error:
        raise InvalidInputError(f"is not JSON: {error}", where=where) from error
    if not isinstance(value, dict):
        raise InvalidInputError(
            f"is malformed: a {type_names[type(value)]}, not a JSON object", where=where
        )
    return cast("dict[str, Json]", value)


def _encode(value: Json) -> None:
    """Encode every text, one after the other: a copy of all takes four times the memory of one.

    Raises:
        UnicodeEncodeError: One has a lone surrogate.
    """
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            one.encode()
        elif isinstance(one, dict):
            waiting += [*one, *one.values()]
        elif isinstance(one, list):
            waiting += one


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise InvalidInputError(f"is malformed JSON: duplicate key {twice[:60]!r}")
    return found


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
