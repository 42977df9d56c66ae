"""Reads from the node's state whether the release that a signed request assigned is confirmed."""

from typing import TYPE_CHECKING

from localpuppet.base.errors import StateError
from localpuppet.node.app import NodeApp

if TYPE_CHECKING:
    from localpuppet.fleet.agent.confirmation.pending import Confirmation
    from localpuppet.node.enc.assignment import Assignment


def confirmation_of(node: NodeApp) -> "Confirmation | None":
    """Return the confirmation of the release that was assigned last to a node, if there is one."""
    # Most nodes have none: `status` then saves the imports.
    if not (node.settings.state / "confirmation.json").exists():
        return None
    from localpuppet.fleet.agent.confirmation.pending import ConfirmationMemory

    return ConfirmationMemory(node.settings.state).read()


def is_confirmed(node: NodeApp, assignment: "Assignment") -> bool:
    """Return whether an assignment is confirmed; a damaged file means that it is not."""
    from localpuppet.fleet.requests.confirmation import Stage

    try:
        confirmation = confirmation_of(node)
    except StateError:  # the agent reports the damage
        return False
    if confirmation is None or not confirmation.is_of(assignment):
        return False
    return confirmation.stage is Stage.CONFIRMED
