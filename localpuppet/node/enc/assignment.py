"""An assignment: the release that a signed request gave to a node, and the one in force.

    app: foo/assigned     +  foo/tags/r2, layers [canary], classes {foo: {port: 81}}
    layers: [ams]         =  app: foo/tags/r2, layers [canary], the input's classes with port 81
    classes: {foo: {}}

- Its layers replace those of the input if it names any; its class parameters win one by one.
- Serials of a node count up by one; two assignments with the same serial are equal, or one is an
  error.

Only the next assignment replaces the one in force, even if several processes write at a time:
staging takes minutes, and a child process continues it after its agent was killed.
"""

from dataclasses import field, replace
from operator import attrgetter
from pathlib import Path
from typing import Annotated, ClassVar

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.converter import JsonForm, JsonRecord
from localpuppet.base.formats.json_file import read_record
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.formats.times import TimeText, parse_time
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.files import write_json
from localpuppet.base.machine.flock import Flock
from localpuppet.node.enc.document import Classes, EncData, Input

SCHEMA = 1
# What identifies an assignment: serials may restart.
identity = attrgetter("release", "serial", "by", "rollout")


def _classes(raw: Json) -> Classes:
    return EncData.from_dict({"classes": raw}).classes


class Assignment(JsonRecord):
    """A release that a signed request gave to a node.

    Attributes:
        serial: One more than that of the node's assignment before; 1 for the first.
        rollout: The rollout that assigned it; empty if a user did so directly.
        allow_older: Whether it may be older than what the node runs.
        after: The newest run of the node at that time; empty without one.
        back_to: The newest run to which a rollback from here may return; empty for none. It is
            `after`, or, if the previous assignment was not confirmed, the `back_to` of that.
        confirm: Seconds after its first run within which it must be confirmed; 0 for none.
    """

    SCHEMA: ClassVar = SCHEMA
    release: ReleasePath
    serial: int
    by: str
    layers: tuple[str, ...] = ()
    classes: Annotated[Classes, JsonForm(_classes)] = field(default_factory=dict)
    at: TimeText = ""
    rollout: str = ""
    allow_older: bool = False
    after: str = ""
    back_to: str = ""
    confirm: float = 0.0

    def over(self, own: Input) -> Input:
        """Return a node's input with this assignment laid over it."""
        given = EncData(classes=self.classes, parameters={})
        return Input(app=self.release, layers=self.layers or own.layers, data=given.over(own.data))

    def same(self, other: "Assignment") -> bool:
        """Return whether two requests are equal, apart from what the node adds."""
        return self._given() == other._given()

    def _given(self) -> "Assignment":
        """Return the assignment without the fields that the node adds."""
        return replace(self, at="", after="", back_to="", confirm=0.0)

    def to_public(self) -> dict[str, Json]:
        """Return what other nodes may read: all but the values of classes."""
        return {
            "release": str(self.release),
            "serial": self.serial,
            "by": self.by,
            "at": self.at,
            "rollout": self.rollout,
            "confirm": self.confirm,
        }

    def __str__(self) -> str:
        at = parse_time(self.at).strftime("%Y-%m-%d %H:%M UTC")
        how = f", rollout {self.rollout}" if self.rollout else ""
        return f"{self.release}, assigned by {self.by} at {at}{how} (serial {self.serial})"


def check_newer(new: Assignment, held: Assignment | None) -> bool:
    """Return whether an assignment is the next of a node; `False` if it is in force.

    A serial that jumps is rejected: after the highest possible serial no assignment could follow.

    Raises:
        InvalidInputError: Its serial is not the next one, and it is not the one in force.
    """
    if new.serial == (1 if held is None else held.serial + 1):
        return True
    if held is not None and new.same(held):
        return False
    current = f"the assignment in force is {held}" if held else "no assignment is in force"
    raise InvalidInputError(
        f"{new.release} has serial {new.serial}, but {current}",
        where="serial",
        hint="another user has assigned a release meanwhile: check, and assign again",
    )


class AssignedRelease:
    """Reads and writes the assignment in force."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._file = state / "assignment.json"

    def read(self) -> Assignment | None:
        """Return the assignment in force; `None` before the first."""
        hint = "move it away, and assign a release again"
        return read_record(self._file, Assignment.from_dict, hint=hint)

    def keep(self, assignment: Assignment) -> None:
        """Put an assignment in force, unless it is in force already.

        Raises:
            InvalidInputError: The assignment is no longer the next one; see `check_newer`.
        """
        path = self._state / "assignment.lock"
        with Flock.need(path, "another process assigns a release"):
            if check_newer(assignment, self.read()):
                write_json(self._file, assignment.to_dict())
