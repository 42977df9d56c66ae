"""The release that a rollout brings, with the layers and class parameters that go with it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from localpuppet.base.formats.names import ReleasePath
from localpuppet.fleet.requests.deploy import Deed, Deploy, rights
from localpuppet.fleet.requests.rollout import OfRollout
from localpuppet.node.enc.document import Classes, EncData


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What each node is to take before it runs.

    Attributes:
        release: The release, a tag.
        layers: Its layers that the nodes take; none for those that their inputs name.
        classes: Classes and parameters over those of their inputs.
        older: Whether it may be older than what a node runs.
    """

    release: ReleasePath
    layers: tuple[str, ...] = ()
    classes: Classes = field(default_factory=dict)
    older: bool = False

    def __post_init__(self) -> None:
        """Refuse what no node takes, before anything begins.

        Raises:
            InvalidInputError: See `Deploy`.
        """
        self.ask(Deed.STAGE, serial=1, rollout=None)

    @property
    def rights(self) -> tuple[str, ...]:
        """What each node's policy must allow."""
        return rights(self.release, values=bool(self.layers or self.classes), older=self.older)

    def ask(self, deed: Deed, *, serial: int, rollout: OfRollout | None) -> Deploy:
        """Return what a node is asked for.

        Raises:
            InvalidInputError: No node would take it: see `Deploy`.
        """
        return Deploy(
            release=self.release,
            deed=deed,
            serial=serial,
            layers=self.layers,
            classes=self.classes,
            older=self.older,
            rollout=rollout,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "release": str(self.release),
            "layers": list(self.layers),
            "classes": {name: dict(body) for name, body in self.classes.items()},
            "older": self.older,
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "Delivery":
        """Return the delivery that a journal holds.

        Raises:
            InvalidInputError: A name in it is refused.
            KeyError: A field is missing.
        """
        return cls(
            release=ReleasePath.parse(raw["release"], where="release"),
            layers=tuple(map(str, raw["layers"])),
            classes=EncData.from_dict({"classes": raw["classes"]}).classes,
            older=bool(raw["older"]),
        )
