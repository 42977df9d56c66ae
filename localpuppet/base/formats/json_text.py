"""Write compact JSON, with parts that are JSON text already.

Example: `members({"ok": True, "answer": JsonText(text="[1,2]")})` is `{"ok":true,"answer":[1,2]}`.
"""

import json
from collections.abc import Iterable, Mapping

from localpuppet.base.value import Value

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
