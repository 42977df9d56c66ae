"""JSON that is written once: a text of it is put into a larger one as it is.

Owns: the compact form. Refuses to know: what is in it.

Example: `members({"ok": True, "answer": JsonText("[1,2]")})` is `{"ok":true,"answer":[1,2]}`.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# Returns a value as JSON without a space that could be left out, in ASCII.
compact = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class JsonText:
    """A value that is JSON already.

    Attributes:
        text: The JSON, in one line.
    """

    text: str


def members(values: Mapping[str, object], *, end: str = "") -> str:
    """Return an object as JSON.

    Args:
        values: Its members; those that are a `JsonText` stand as they are.
        end: What stands behind the object: a newline, say.
    """
    pieces: list[str] = []
    for key, value in values.items():
        pieces += ("," if pieces else "{", compact(key), ":", _text(value))
    # In one go: to copy a large text takes as long as to write it.
    return "".join([*(pieces or "{"), "}", end])


def elements(texts: Iterable[str]) -> str:
    """Return a list as JSON.

    Args:
        texts: The elements, each as JSON.
    """
    pieces: list[str] = []
    for text in texts:
        pieces += ("," if pieces else "[", text)
    return "".join([*(pieces or "["), "]"])


def _text(value: object) -> str:
    return value.text if isinstance(value, JsonText) else compact(value)
