"""Match regular expressions from queries within bounds of time and memory.

- RE2 takes time in proportion to the text, so no expression can block an agent ([ADR
  23](docs/adr/0023-queries.md)). It has no look-around and no back references.
- An expression that RE2 rejects results in a one-line error with the reason.
"""

from collections.abc import Callable

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.text import one_line

MAX_EXPRESSION = 1024
# RE2's own limit for a compiled expression, in bytes.
MAX_MEMORY = 1024 * 1024
MAX_SUBJECT = 64 * 1024

Search = Callable[[str], bool]


def searching(expression: str) -> Search:
    """Return a function that searches an expression in a text.

    The function reads only the first `MAX_SUBJECT` characters of a text.

    Raises:
        InvalidInputError: The expression is invalid or too large.
    """
    import re2  # 4 ms, for queries with an expression only

    if len(expression) > MAX_EXPRESSION:
        raise InvalidInputError(
            f"the regular expression is too long: {len(expression)} characters, "
            f"the limit is {MAX_EXPRESSION}"
        )
    options = re2.Options()
    options.max_mem = MAX_MEMORY
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
    return lambda text: compiled.search(text[:MAX_SUBJECT]) is not None


def matching_whole(expression: str) -> Search:
    """Return a function that matches an expression with a whole text.

    Raises:
        InvalidInputError: As for `searching`.
    """
    searching(expression)  # it must be valid without the parentheses: `a)|(b` is not
    return searching(rf"\A(?:{expression})\z")
