"""The rollout that a request is a part of.

- A request for another caller's rollout acts for that caller, and needs the right `takeover`.
"""

import uuid
from dataclasses import dataclass, field

from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.json_form import JsonForm, integer, parsed, read_by
from localpuppet.base.formats.names import RolloutId, SignerName
from localpuppet.node.runs.hold import rollout_owner

MAX_STEP = 1_000_000_000  # each noop run before a run is a separate step, in each epoch
MAX_EPOCH = 100_000
# The longest hold of a rollout without renewal, in seconds. A running rollout needs minutes; a
# failed node can be held for a day, for an inspection.
MAX_HOLD = 86400.0
_NAMESPACE = uuid.UUID("5a7d1f1e-54c8-4f5e-8f0a-6a8a4a0b2a16")


def _caller(text: str) -> str:
    return SignerName.parse_caller(text).caller


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutReference(JsonForm):
    """The rollout of a request.

    Attributes:
        id: The rollout.
        epoch: How often the rollout was begun or resumed, from 1: a node rejects requests of an
            epoch before the newest one that it knows.
        step: The number of the run's step, from 1; 0 if the request is not a run.
        caller: The caller id of the rollout's owner, if the request comes from another caller that
            took the rollout over; otherwise empty.
    """

    id: RolloutId = field(metadata=parsed(RolloutId.parse))
    epoch: int = field(metadata=integer(minimum=1, maximum=MAX_EPOCH))
    step: int = field(default=0, metadata=integer(minimum=1, maximum=MAX_STEP))
    caller: str = field(default="", metadata=parsed(_caller))

    def owner(self, caller: str) -> str:
        """Return the owner of the rollout's holds.

        Args:
            caller: The caller id of the request.
        """
        return rollout_owner(self.caller or caller, self.id)

    def taken_over_by(self, caller: str) -> str:
        """Return the caller if it took over another caller's rollout, otherwise empty."""
        return "" if self.caller in ("", caller) else caller


def _rollout(raw: Fields, key: str) -> RolloutReference:
    """Read the rollout of a request that is not a run."""
    inner = raw.inner(key)
    inner.only(("id", "epoch", "caller"))
    return RolloutReference.read(inner)


def _rollout_step(raw: Fields, key: str) -> RolloutReference:
    inner = raw.inner(key)
    inner.value("step")  # a run is a step
    return RolloutReference.read(inner)


ROLLOUT, ROLLOUT_STEP = read_by(_rollout), read_by(_rollout_step)


def step_uuid(owner: str, step: int) -> str:
    """Return the id of a step's cause on a node, which both sides compute.

    Args:
        owner: The owner of the rollout's holds.
        step: The step.
    """
    return str(uuid.uuid5(_NAMESPACE, f"{owner}/{step}"))
