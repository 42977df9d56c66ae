"""What a node tells of the confirmation of a release that a signed request gave.

Owns: its stages, and how those read it who confirm. Refuses to know: when a node begins one, and
what it does without (`agent.confirming`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.values import Json, mapping_of

MAX_WHY = 300


class Stage(StrEnum):
    """Where a confirmation is."""

    PENDING = "pending"
    CONFIRMED = "confirmed"
    GOING_BACK = "going back"
    WENT_BACK = "went back"  # the run of the older release is over, and good
    NOT_BACK = "could not go back"
    LEFT = "left"  # for another release, or by somebody's rollback


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmationTold:
    """What a node tells of a confirmation.

    Attributes:
        stage: Where it is; `None` where it is not begun.
        nonce: What is to come back; empty where it cannot come back now.
        why: One line more.
    """

    stage: Stage | None = None
    nonce: str = ""
    why: str = ""


def confirmation_told(
    status: Mapping[str, Json], *, serial: int, rollout: str
) -> ConfirmationTold | None:
    """Return what a node tells of the confirmation of an assignment; `None` where it needs none.

    Args:
        status: Its status.
        serial: Of the assignment.
        rollout: Who assigned it.
    """
    assignment, told = mapping_of(status.get("assignment")), mapping_of(status.get("confirmation"))
    mine = (serial, rollout)
    asked = (assignment.get("serial"), assignment.get("rollout")) == mine
    if not asked or not assignment.get("confirm"):
        return None
    if (told.get("serial"), told.get("rollout")) != mine:
        return ConfirmationTold()
    try:
        stage = Stage(_text(told, "stage"))
    except ValueError:
        return ConfirmationTold()
    return ConfirmationTold(stage=stage, nonce=_text(told, "nonce"), why=_text(told, "why"))


def _text(told: Mapping[str, Json], key: str) -> str:
    value = told.get(key)
    return one_line(value)[:MAX_WHY] if isinstance(value, str) else ""
