"""The confirmation of a deployed release: its waiting time, its file, and what others read.

- `agent.confirming` has the node's side.

    pending -> confirmed
            -> rolling back -> rolled back, or rollback failed
            -> superseded: a person has decided otherwise

- A changed clock neither makes a confirmation wait forever nor rolls a node back at once.
- Within a boot, the kernel's monotonic clock counts. It cannot be set, all processes share it, and
  it stops while the machine sleeps.
- After a reboot, the time of day gives the downtime, between zero and the whole waiting time. Then
  the monotonic clock of the new boot counts.
"""

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

from localpuppet.base.errors import StateError
from localpuppet.base.formats.converter import JsonRecord, to_record
from localpuppet.base.formats.json_file import read_record
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.times import checked_time, parse_time, show_duration
from localpuppet.base.formats.values import Json, mapping_of
from localpuppet.base.machine.files import make_private, write_json
from localpuppet.base.value import Value
from localpuppet.node.enc.assignment import Assignment, identity

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
    """

    stage: Stage | None = None
    nonce: str = ""
    reason: str = ""


def reported_confirmation(
    status: Mapping[str, Json], *, serial: int, rollout: str
) -> ConfirmationReport | None:
    """Return the confirmation of an assignment from a node's status; `None` if it needs none."""
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


OPEN = (Stage.PENDING, Stage.ROLLING_BACK)


class Instant(Value):
    """A moment by both clocks.

    Attributes:
        monotonic: The monotonic clock of that boot in seconds.
        at: The time of day, ISO 8601, UTC.
    """

    boot: str
    monotonic: float
    at: str

    def __post_init__(self) -> None:
        """Check the time of day."""
        checked_time(self.at)


class Confirmation(JsonRecord):
    """The confirmation of a deployed release after its first run.

    Attributes:
        by: The caller id that assigned the release.
        rollout: The rollout that assigned it; empty for a person.
        run: The first finished run of the release.
        nonce: The UUID that has to come back through the bus.
        within: Seconds for that.
        since: When the waiting time began.
        reached: Whether a new connection had an answer since: the release has not cut this node
            off.
        reason: A reason for people, one line; may be empty.
        newest: The newest run when the node decided to roll back, then the newest failed run of the
            older release; empty before.
        tries: The number of failed rollback attempts.
    """

    SCHEMA: ClassVar = 1
    serial: int
    release: str
    by: str
    rollout: str
    run: str
    nonce: str
    within: float
    since: Instant
    reached: bool = False
    stage: Stage = Stage.PENDING
    reason: str = ""
    newest: str = ""
    tries: int = 0

    def is_of(self, assignment: Assignment) -> bool:
        """Return whether this confirmation is for an assignment; serials may restart."""
        matches: bool = identity(self) == identity(assignment)
        return matches

    @property
    def silence(self) -> str:
        """Return why this node rolls back."""
        return f"no connection to the bus for {show_duration(self.within)}"

    def concerns(self, *, rolled_back: bool) -> bool:
        """Return whether a person who looks at the node should see the confirmation.

        Args:
            rolled_back: Whether a rollback is in force.
        """
        return self.stage in (*OPEN, Stage.ROLLBACK_FAILED) or (
            rolled_back and self.stage is not Stage.CONFIRMED
        )

    def carried(self, now: Instant) -> "Confirmation":
        """Return the confirmation with its waiting time continued in the boot of `now`."""
        if self.since.boot == now.boot:
            return self
        passed = (parse_time(now.at) - parse_time(self.since.at)).total_seconds()
        passed = min(max(passed, 0.0), self.within)
        since = Instant(boot=now.boot, monotonic=now.monotonic - passed, at=self.since.at)
        return replace(self, since=since)

    def waited(self, now: Instant) -> float:
        """Return the seconds that it has waited; `now` is of the same boot."""
        return max(now.monotonic - self.since.monotonic, 0.0)

    def to_public(self) -> dict[str, Json]:
        """Return the published part; the nonce is published separately, when it can come back."""
        return {
            "serial": self.serial,
            "release": self.release,
            "rollout": self.rollout,
            "run": self.run,
            "stage": str(self.stage),
            "since": self.since.at,
            "within": self.within,
            "reason": self.reason,
        }

    def __str__(self) -> str:
        """Return one line for people."""
        return f"{self.release}: {self.stage}{f' ({self.reason})' if self.reason else ''}"


class ConfirmationMemory:
    """The stored confirmation, which survives kills and reboots."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._file = state / "confirmation.json"

    def read(self) -> Confirmation | None:
        """Return the confirmation; `None` before the first.

        Raises:
            StateError: The file is damaged or unreadable.
        """
        hint = "move it away: the node then starts a new confirmation"
        return read_record(self._file, Confirmation.from_dict, hint=hint)

    def write(self, confirmation: Confirmation) -> None:
        """Write the confirmation durably."""
        make_private(self._state)
        write_json(self._file, to_record(confirmation))


def is_confirmed(state: Path, assignment: Assignment) -> bool:
    """Return whether an assignment is confirmed; a damaged file means that it is not."""
    try:
        confirmation = ConfirmationMemory(state).read()
    except StateError:  # the agent reports the damage
        return False
    if confirmation is None or not confirmation.is_of(assignment):
        return False
    return confirmation.stage is Stage.CONFIRMED
