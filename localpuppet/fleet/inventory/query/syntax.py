"""Parse a text with a grammar, with one-line errors that name the place."""

from typing import TYPE_CHECKING

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.text import one_line
from localpuppet.fleet.inventory.query.tree import MAX_DEPTH

if TYPE_CHECKING:
    from lark import Lark, Token, Tree

NEAR = 20


def parsed(parser: "Lark", text: str, *, what: str, hint: str = "") -> "Tree[Token]":
    """Return the syntax tree of a text.

    Args:
        parser: The grammar.
        text: The text.
        what: The language, for messages.
        hint: The cure, for messages.

    Raises:
        InvalidInputError: The text is malformed or nested too deep.
    """
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
        one, depth = waiting.pop()
        if depth > 2 * MAX_DEPTH:
            raise InvalidInputError("the query is nested too deep", where=what)
        waiting.extend((child, depth + 1) for child in one.children if isinstance(child, Tree))
