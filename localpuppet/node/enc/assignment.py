"""An assignment: the release that a signed request gave to a node, laid over the node's input.

    app: foo/assigned     +  foo/tags/r2, layers [canary], classes {foo: {port: 81}}
    layers: [ams]         =  app: foo/tags/r2, layers [canary], the input's classes with port 81
    classes: {foo: {}}

- Its layers replace those of the input if it names any; its class parameters win one by one.
- Serials of a node count up by one; two assignments with the same serial are equal, or one is an
  error.
"""

from collections.abc import Mapping
from dataclasses import field, replace
from operator import attrgetter
from typing import cast

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.formats.schema_number import check_schema, damage_errors
from localpuppet.base.formats.times import parse_time
from localpuppet.base.formats.values import Json, field_values
from localpuppet.base.value import Value
from localpuppet.node.enc.document import Classes, EncData, Input

SCHEMA = 1
# What identifies an assignment: serials may restart.
identity = attrgetter("release", "serial", "by", "rollout")


class Assignment(Value):
    """A release that a signed request gave to a node.

    Attributes:
        release: The release, a tag.
        layers: Its layers that the node takes; none for those that the input names.
        classes: Classes and parameters over those of the input.
        serial: One more than that of the node's assignment before; 1 for the first.
        by: The caller id of the user who assigned it.
        at: When the node took it, ISO 8601.
        rollout: The rollout that assigned it; empty if a user did so directly.
        allow_older: Whether it may be older than what the node runs.
        after: The newest run of the node at that time; empty without one.
        back_to: The newest run to which a rollback from here may return; empty for none. It is
            `after`, or, if the previous assignment was not confirmed, the `back_to` of that.
        confirm: Seconds after its first run within which it must be confirmed; 0 for no
            confirmation.
    """

    release: ReleasePath
    serial: int
    by: str
    layers: tuple[str, ...] = ()
    classes: Classes = field(default_factory=dict)
    at: str = ""
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

    def to_dict(self) -> dict[str, Json]:
        """Return the JSON form."""
        return {"schema": SCHEMA, **field_values(self)}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Json]) -> "Assignment":
        """Return the assignment."""
        with damage_errors():
            check_schema(raw, SCHEMA)
            if type(raw["serial"]) is not int:
                raise ValueError("serial")
            release = ReleasePath.parse(cast("str", raw["release"]), where="release")
            layers = cast("list[str]", raw["layers"])
            parse_time(cast("str", raw["at"]))
            return cls(
                release=release,
                serial=raw["serial"],
                by=str(raw["by"]),
                layers=tuple(map(str, layers)),
                classes=EncData.from_dict({"classes": raw["classes"]}).classes,
                at=str(raw["at"]),
                rollout=str(raw["rollout"]),
                allow_older=bool(raw["allow_older"]),
                after=str(raw["after"]),
                back_to=str(raw["back_to"]),
                confirm=float(cast("float", raw["confirm"])),
            )

    def __str__(self) -> str:
        """Return one line for people."""
        at = parse_time(self.at).strftime("%Y-%m-%d %H:%M UTC")
        how = f", rollout {self.rollout}" if self.rollout else ""
        return f"{self.release}, assigned by {self.by} at {at}{how} (serial {self.serial})"


def check_newer(new: Assignment, held: Assignment | None) -> bool:
    """Return whether an assignment is the next of a node; `False` if it is in force.

    A serial that jumps is rejected: after the highest possible serial no assignment could follow.

    Args:
        new: The assignment.
        held: The one in force, if any.

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
