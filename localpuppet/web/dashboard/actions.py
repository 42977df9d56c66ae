"""The actions that people can request from the dashboard for nodes, and their effects.

The dashboard decides nothing: each node's own policy decides about a request.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Self

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import parse_line
from localpuppet.base.formats.times import parse_duration
from localpuppet.fleet.inventory.node_row import UNRESPONSIVE, NodeRow


class ActionWord(StrEnum):
    """An action as a word in a URL."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the action.

        Raises:
            InvalidInputError: The text is not an action.
        """
        try:
            return cls(text)
        except ValueError as error:
            raise InvalidInputError(f"is not one of {', '.join(cls)}", where="action") from error


class Action(ActionWord):
    """An action of a node, as a word in a URL."""

    TRIGGER = "trigger"
    NOOP = "noop"
    HOLD = "hold"
    ENABLE = "enable"

    @property
    def label(self) -> str:
        """Return the label of its button."""
        return _LABELS[self]


_LABELS = {
    Action.TRIGGER: "Trigger a run",
    Action.NOOP: "Noop run",
    Action.HOLD: "Put on hold",
    Action.ENABLE: "End my hold",
}
_WILL = {
    Action.TRIGGER: (
        "localpuppet sends it a trigger in your name. A run of the node's release follows."
    ),
    Action.NOOP: "localpuppet requests a run with --noop: Puppet reports what it would change.",
    Action.HOLD: (
        "No run starts on it until the hold ends: neither by timer nor by trigger nor by a Puppet"
        " agent. A run that has started continues."
    ),
    Action.ENABLE: "Your hold on it ends. Holds of other operators remain.",
}
# The action in the node's policy.
NEEDS = {
    Action.TRIGGER: "trigger",
    Action.NOOP: "runonce",
    Action.HOLD: "disable",
    Action.ENABLE: "enable",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAction:
    """A request for an action of a node.

    Attributes:
        action: The action.
        node: The node.
        message: The reason of a hold.
        length: The length of a hold, `2h`; empty for unlimited.
    """

    action: Action
    node: NodeName
    message: str = ""
    length: str = ""

    @classmethod
    def read(cls, action: Action, node: NodeName, form: Mapping[str, str]) -> "NodeAction":
        """Return the request in a form.

        Args:
            action: The action.
            node: The node.
            form: The fields of the form.

        Raises:
            InvalidInputError: A field is invalid.
        """
        if action is not Action.HOLD:
            return cls(action=action, node=node)
        line = partial(parse_line, what="reason")
        length = form.get("length", "").strip()
        if length:
            parse_duration(length, what="length of a hold")
        return cls(
            action=action, node=node, message=line(form.get("message", "").strip()), length=length
        )

    def __str__(self) -> str:
        """Return the request for the log."""
        if self.action is not Action.HOLD:
            return str(self.action)
        return f"hold ({f'for {self.length}' if self.length else 'without end'}: {self.message})"


def consequences(action: Action, row: NodeRow) -> tuple[str, ...]:
    """Return the consequences, sentence by sentence.

    Args:
        action: The action.
        row: The node's row.
    """
    found = [_WILL[action]]
    runs = action in (Action.TRIGGER, Action.NOOP)
    if row.state == UNRESPONSIVE:
        found.append("It is unresponsive: it may not receive the request.")
    if runs and row.holds:
        found.append("It is on hold: no run starts before the hold ends.")
    elif runs and row.cause:
        found.append("A run is in progress; the new one follows it.")
    if action is Action.ENABLE and not row.holds:
        found.append("It reports that it is not on hold.")
    found.append(f"Its policy must allow you the action {NEEDS[action]}.")
    return tuple(found)
