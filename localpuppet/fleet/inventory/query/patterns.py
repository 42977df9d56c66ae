"""Regular expressions of other people: a bound in time and in memory, whatever they are.

Owns: which library reads them, and how large they may be. RE2 takes time in proportion to the
text, so that no expression can hold up an agent ([ADR 23](docs/adr/0023-queries.md)); it has no
look-around and no back references, and says so.

Invariant: an expression that RE2 refuses is refused by one line that says why.
"""

from collections.abc import Callable

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.text import one_line

MAX_EXPRESSION = 1024
# RE2's own bound on what an expression becomes in memory, in bytes.
MAX_MEMORY = 1024 * 1024
MAX_SUBJECT = 64 * 1024

Search = Callable[[str], bool]


def searching(expression: str) -> Search:
    """Return what tells whether an expression is found somewhere in a text.

    Of a text of more than `MAX_SUBJECT` characters only so many are looked at.

    Raises:
        InvalidInputError: It is not a regular expression, or is too large.
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
        told = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise InvalidInputError(
            f"the regular expression is refused: {one_line(told)}",
            hint="RE2's syntax: no look-around, no back references",
        ) from error
    return lambda text: compiled.search(text[:MAX_SUBJECT]) is not None


def matching_whole(expression: str) -> Search:
    """Return what tells whether an expression matches a text from its start to its end.

    Raises:
        InvalidInputError: As for `searching`.
    """
    searching(expression)  # by itself it must be one: `a)|(b` is not
    return searching(rf"\A(?:{expression})\z")
