"""What a request says of the rollout that it is a part of.

Owns: the claim and its form, and who is meant by it. Refuses to know: what a node does with it.

Invariant: who names another caller's rollout speaks for that caller, and needs the right to.
"""

import uuid
from dataclasses import dataclass

from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.names import RolloutId, SignerName
from localpuppet.base.formats.values import Json
from localpuppet.node.runs.hold import rollout_owner

MAX_STEP = 1_000_000_000  # each look before a run is a step of its own, in each epoch
MAX_EPOCH = 100_000
# The longest that a rollout holds a node without saying so again, in seconds: while it goes on it
# needs minutes, and a node that failed can be kept for a day, to be looked into.
MAX_HOLD = 86400.0
_NAMESPACE = uuid.UUID("5a7d1f1e-54c8-4f5e-8f0a-6a8a4a0b2a16")


@dataclass(frozen=True, slots=True, kw_only=True)
class OfRollout:
    """The rollout that a request belongs to.

    Attributes:
        id: The rollout.
        epoch: How often the rollout was begun or resumed, from 1: a node does nothing for an
            earlier epoch than the newest that it heard of.
        step: The group whose run this is, from 1; 0 for what is not a run.
        caller: Whose rollout it is, a caller id, where that is not the request's own caller, who
            has taken it over; else empty.
    """

    id: RolloutId
    epoch: int
    step: int = 0
    caller: str = ""

    @classmethod
    def read(cls, fields: Fields, *, step: bool) -> "OfRollout":
        """Return the claim.

        Args:
            fields: It.
            step: Whether it names a step.

        Raises:
            InvalidInputError: A field is missing, unknown, or not of its type.
        """
        fields.only(("id", "epoch", "caller", *(("step",) if step else ())))
        return cls(
            id=fields.parsed("id", RolloutId.parse),
            epoch=fields.integer("epoch", minimum=1, maximum=MAX_EPOCH),
            step=fields.integer("step", minimum=1, maximum=MAX_STEP) if step else 0,
            caller=fields.parsed("caller", _caller) if "caller" in fields else "",
        )

    @classmethod
    def read_if_there(cls, fields: Fields, *, step: bool) -> "OfRollout | None":
        """Return the claim in the field `rollout`; `None` where there is none; see `read`."""
        return cls.read(fields.inner("rollout"), step=step) if "rollout" in fields else None

    def to_dict(self) -> dict[str, Json]:
        """Return the JSON form."""
        return {
            "id": str(self.id),
            "epoch": self.epoch,
            **({"step": self.step} if self.step else {}),
            **({"caller": self.caller} if self.caller else {}),
        }

    def owner(self, caller: str) -> str:
        """Return the owner of the rollout's holds.

        Args:
            caller: Who asks, a caller id.
        """
        return rollout_owner(self.caller or caller, self.id)

    def taken_over_by(self, caller: str) -> str:
        """Return who asks where it is another caller's rollout; empty where it is its own."""
        return "" if self.caller in ("", caller) else caller


def _caller(text: str) -> str:
    return SignerName.parse_caller(text).caller


def claimed(claim: OfRollout | None) -> dict[str, Json]:
    """Return the field `rollout` of a request's arguments, where there is one."""
    return {} if claim is None else {"rollout": claim.to_dict()}


def step_uuid(owner: str, step: int) -> str:
    """Return the id of the cause that a step is on a node: both sides make it by themselves.

    Args:
        owner: The owner of the rollout's holds.
        step: The step.
    """
    return str(uuid.uuid5(_NAMESPACE, f"{owner}/{step}"))
