"""Check the text of a query, and parse it with a grammar; one-line errors name the place."""

import math
import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from localpuppet.base.errors import InvalidInputError, check_limit
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.query.query_limits import MAX_QUERY_DEPTH, MAX_QUERY_TEXT

if TYPE_CHECKING:
    from lark import Lark, Token, Tree

# SQLite has no larger integers.
MAX_INTEGER = 2**63 - 1
NEAR = 20
_SURROGATE = re.compile("[\ud800-\udfff]")


def with_operators(grammar: str, words: Collection[str]) -> str:
    """Return a grammar whose `OPERATOR` is one of some words, and `SIGNS` their characters."""
    written = " | ".join(f'"{word}"' for word in sorted(words))
    return f"{grammar.replace('SIGNS', re.escape(''.join(sorted(words))))}OPERATOR: {written}\n"


def parsed(parser: "Lark", text: str, *, what: str, hint: str = "") -> "Tree[Token]":
    """Return the syntax tree of a text."""
    from lark.exceptions import UnexpectedEOF, UnexpectedInput, UnexpectedToken

    try:
        tree = parser.parse(text)
    except UnexpectedInput as error:
        ended = isinstance(error, UnexpectedEOF) or (
            isinstance(error, UnexpectedToken) and error.token.type == "$END"
        )
        if ended:
            place = "at its end"
        else:
            place = f"at line {error.line}, column {error.column}"
            near = text[error.pos_in_stream or 0 :][:NEAR]
            place += f", before {one_line(near)!r}" if near else ""
        raise InvalidInputError(
            f"could not parse the query {place}", where=what, hint=hint
        ) from error
    _check_depth(tree, what)
    return tree


def _check_depth(tree: "Tree[Token]", what: str) -> None:
    """Reject a tree that is too deep for recursion."""
    from lark import Tree

    waiting = [(tree, 1)]
    while waiting:
        item, depth = waiting.pop()
        if depth > 2 * MAX_QUERY_DEPTH:
            raise InvalidInputError("the query is nested too deep", where=what)
        waiting.extend((child, depth + 1) for child in item.children if isinstance(child, Tree))


def check_text(text: str) -> str:
    """Return a query's text after checking that it may be parsed."""
    check_limit(len(text), MAX_QUERY_TEXT, what="the query is too long", unit="characters")
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


def check_values(value: object) -> None:
    """Reject values that the parts of a query cannot have, whichever JSON reader made them.

    They are too deep for recursion, a number beyond 64 bits, or a text with a lone surrogate.
    """
    waiting = [(value, 1)]
    while waiting:
        item, depth = waiting.pop()
        if depth > 2 * MAX_QUERY_DEPTH:
            raise InvalidInputError("the query is nested too deep")
        if isinstance(item, list | tuple):
            waiting.extend((part, depth + 1) for part in item)
        elif isinstance(item, dict):
            waiting.extend((part, depth + 1) for part in (*item, *item.values()))
        elif isinstance(item, str) and _SURROGATE.search(item):
            raise InvalidInputError("the query has a lone surrogate")
        elif isinstance(item, int) and abs(item) > MAX_INTEGER:
            raise InvalidInputError("the query has an integer of more than 64 bits")
        elif isinstance(item, float) and not math.isfinite(item):
            raise InvalidInputError("the query has a number that is not finite")


def parse_json(text: str, name: str) -> Json:
    """Return the value of a parameter in JSON that a query can have."""
    try:
        value: Json = loads(check_text(text))
    except ValueError as error:
        raise InvalidInputError(f"the parameter {name!r} is not JSON: {error}") from error
    check_values(value)
    return value
