"""Parse text from outside as a member of an enumeration."""

from enum import StrEnum
from typing import TypeVar

from localpuppet.base.errors import InvalidInputError

MAX_SHOWN = 60

Choice = TypeVar("Choice", bound=StrEnum)


def parse_choice(kind: type[Choice], text: str, *, what: str, hint: str = "") -> Choice:
    """Return the member of an enumeration that a text names.

    Args:
        kind: The enumeration.
        text: The text.
        what: A description of the value for the message: "a way to take a resource".
        hint: What to do besides writing one of the members.

    Raises:
        InvalidInputError: The text is not a member; the message lists all members.
    """
    try:
        return kind(text)
    except ValueError as error:
        raise InvalidInputError(
            f"{text[:MAX_SHOWN]!r} is not {what}",
            hint="; ".join(filter(None, [f"use one of {', '.join(kind)}", hint])),
        ) from error
