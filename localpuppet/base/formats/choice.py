"""A word out of those that there are: what comes from outside is one of them, or is refused."""

from enum import StrEnum
from typing import TypeVar

from localpuppet.base.errors import InvalidInputError

MAX_SHOWN = 60

Choice = TypeVar("Choice", bound=StrEnum)


def parse_choice(kind: type[Choice], text: str, *, what: str, hint: str = "") -> Choice:
    """Return which of the words of an enumeration a text is.

    Args:
        kind: The enumeration.
        text: The text.
        what: What the text is to be, for the message: "a way to take a resource".
        hint: What to do besides writing one of the words.

    Raises:
        InvalidInputError: It is none of them; all of them are named.
    """
    try:
        return kind(text)
    except ValueError as error:
        raise InvalidInputError(
            f"{text[:MAX_SHOWN]!r} is not {what}",
            hint="; ".join(filter(None, [f"one of {', '.join(kind)}", hint])),
        ) from error
