"""What nodes reply, as it can be shown and relied upon: lines of a length, reasons."""

from typing import TYPE_CHECKING

from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.values import Json

if TYPE_CHECKING:
    from localpuppet.fleet.requests.client import Answer

PATIENCE = 20.0  # seconds for a reply
MAX_REASON = 300


def line(value: Json) -> str:
    """Return what a node says as a line that can be shown; empty for what is not a text."""
    return one_line(value if isinstance(value, str) else "")[:MAX_REASON]


def problem_of(answer: "Answer") -> str:
    """Return why a node did not do what it was asked for, in a line that can be shown."""
    if answer.reply is None:
        return answer.problem
    return line(answer.reply.error or "")
