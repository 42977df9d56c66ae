"""Texts of nodes' replies, cleaned and truncated for messages."""

from typing import TYPE_CHECKING

from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.values import Json

if TYPE_CHECKING:
    from localpuppet.fleet.requests.client import NodeAnswer

PATIENCE = 20.0  # seconds for a reply
MAX_REASON = 300


def line(value: Json) -> str:
    """Return a text of a node as one line of up to `MAX_REASON`; empty if it is not a text."""
    return one_line(value if isinstance(value, str) else "")[:MAX_REASON]


def problem_of(answer: "NodeAnswer") -> str:
    """Return why a request failed, one line."""
    if answer.reply is None:
        return answer.problem
    return line(answer.reply.error or "")
