"""The confirmation of an assigned release, as the node publishes it.

- `agent.confirming` has the node's side.
"""

from collections.abc import Mapping
from enum import StrEnum

from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.values import Json, mapping_of
from localpuppet.base.value import Value

MAX_REASON = 300


class Stage(StrEnum):
    """The stages of a confirmation."""

    PENDING = "pending"
    CONFIRMED = "confirmed"
    ROLLING_BACK = "rolling back"
    ROLLED_BACK = "rolled back"  # the run of the older release was successful
    ROLLBACK_FAILED = "rollback failed"
    SUPERSEDED = "superseded"  # by another release, or by a person's rollback


class ConfirmationReport(Value):
    """A published confirmation.

    Attributes:
        stage: Its stage; `None` if it has not begun.
        nonce: The nonce that has to come back; empty if it cannot come back now.
        reason: A reason for people, one line.
    """

    stage: Stage | None = None
    nonce: str = ""
    reason: str = ""


def reported_confirmation(
    status: Mapping[str, Json], *, serial: int, rollout: str
) -> ConfirmationReport | None:
    """Return the confirmation of an assignment from a node's status; `None` if it needs none.

    Args:
        status: The node's status.
        serial: The serial of the assignment.
        rollout: The rollout that assigned the release.
    """
    assignment, confirmation = (
        mapping_of(status.get("assignment")),
        mapping_of(status.get("confirmation")),
    )
    mine = (serial, rollout)
    asked = (assignment.get("serial"), assignment.get("rollout")) == mine
    if not asked or not assignment.get("confirm"):
        return None
    if (confirmation.get("serial"), confirmation.get("rollout")) != mine:
        return ConfirmationReport()
    try:
        stage = Stage(_text(confirmation, "stage"))
    except ValueError:
        return ConfirmationReport()
    return ConfirmationReport(
        stage=stage, nonce=_text(confirmation, "nonce"), reason=_text(confirmation, "reason")
    )


def _text(fields: Mapping[str, Json], key: str) -> str:
    value = fields.get(key)
    return one_line(value)[:MAX_REASON] if isinstance(value, str) else ""
