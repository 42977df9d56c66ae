"""The rollout that a request is a part of.

- A request for another caller's rollout acts for that caller, and needs the right `takeover`.
"""

import uuid
from dataclasses import dataclass

from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.names import RolloutId, SignerName
from localpuppet.base.formats.values import Json
from localpuppet.node.runs.hold import rollout_owner

MAX_STEP = 1_000_000_000  # each noop run before a run is a separate step, in each epoch
MAX_EPOCH = 100_000
# The longest hold of a rollout without renewal, in seconds. A running rollout needs minutes; a
# failed node can be held for a day, for an inspection.
MAX_HOLD = 86400.0
_NAMESPACE = uuid.UUID("5a7d1f1e-54c8-4f5e-8f0a-6a8a4a0b2a16")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutReference:
    """The rollout of a request.

    Attributes:
        id: The rollout.
        epoch: How often the rollout was begun or resumed, from 1: a node rejects requests of an
            epoch before the newest one that it knows.
        step: The number of the run's step, from 1; 0 if the request is not a run.
        caller: The caller id of the rollout's owner, if the request comes from another caller that
            took the rollout over; otherwise empty.
    """

    id: RolloutId
    epoch: int
    step: int = 0
    caller: str = ""

    @classmethod
    def read(cls, fields: Fields, *, step: bool) -> "RolloutReference":
        """Read the claim from JSON fields.

        Args:
            fields: The fields.
            step: Whether it names a step.

        Raises:
            InvalidInputError: A field is missing, unknown, or of the wrong type.
        """
        fields.only(("id", "epoch", "caller", *(("step",) if step else ())))
        return cls(
            id=fields.parsed("id", RolloutId.parse),
            epoch=fields.integer("epoch", minimum=1, maximum=MAX_EPOCH),
            step=fields.integer("step", minimum=1, maximum=MAX_STEP) if step else 0,
            caller=fields.parsed("caller", _caller) if "caller" in fields else "",
        )

    @classmethod
    def read_if_there(cls, fields: Fields, *, step: bool) -> "RolloutReference | None":
        """Read the claim in the field `rollout`; `None` without the field; see `read`."""
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
            caller: The caller id of the request.
        """
        return rollout_owner(self.caller or caller, self.id)

    def taken_over_by(self, caller: str) -> str:
        """Return the caller if it took over another caller's rollout, otherwise empty."""
        return "" if self.caller in ("", caller) else caller


def _caller(text: str) -> str:
    return SignerName.parse_caller(text).caller


def claimed(claim: RolloutReference | None) -> dict[str, Json]:
    """Return the field `rollout` of a request's arguments, if there is a claim."""
    return {} if claim is None else {"rollout": claim.to_dict()}


def step_uuid(owner: str, step: int) -> str:
    """Return the id of a step's cause on a node, which both sides compute.

    Args:
        owner: The owner of the rollout's holds.
        step: The step.
    """
    return str(uuid.uuid5(_NAMESPACE, f"{owner}/{step}"))
