"""The rollout that a request is a part of.

- A request for another caller's rollout acts for that caller, and needs the right `takeover`.
"""

import uuid
from typing import Annotated

from localpuppet.base.formats.names import RolloutId, SignerName
from localpuppet.base.formats.records import AllowedRange, Message
from localpuppet.node.runs.hold import rollout_owner

MAX_STEP = 1_000_000_000  # each noop run before a run is a separate step, in each epoch
MAX_EPOCH = 100_000
# The longest hold of a rollout without renewal, in seconds. A running rollout needs minutes; a
# failed node can be held for a day, for an inspection.
MAX_HOLD = 86400.0
_NAMESPACE = uuid.UUID("5a7d1f1e-54c8-4f5e-8f0a-6a8a4a0b2a16")


def _caller(text: str) -> str:
    return SignerName.parse_caller(text).caller


class RolloutReference(Message):
    """The rollout of a request that is not a run.

    Attributes:
        id: The rollout.
        epoch: How often the rollout was begun or resumed, from 1: a node rejects requests of an
            epoch before the newest one that it knows.
        caller: The caller id of the rollout's owner, if the request comes from another caller that
            took the rollout over; otherwise empty.
    """

    id: RolloutId
    epoch: Annotated[int, AllowedRange(minimum=1, maximum=MAX_EPOCH)]
    caller: Annotated[str, _caller] = ""

    def owner(self, caller: str) -> str:
        """Return the owner of the rollout's holds.

        Args:
            caller: The caller id of the request.
        """
        return rollout_owner(self.caller or caller, self.id)

    def taken_over_by(self, caller: str) -> str:
        """Return the caller if it took over another caller's rollout, otherwise empty."""
        return "" if self.caller in ("", caller) else caller


class RolloutStep(RolloutReference):
    """The rollout of a request that is a run.

    Attributes:
        step: The number of the run's step, from 1.
    """

    step: Annotated[int, AllowedRange(minimum=1, maximum=MAX_STEP)]


def step_uuid(owner: str, step: int) -> str:
    """Return the id of a step's cause on a node, which both sides compute.

    Args:
        owner: The owner of the rollout's holds.
        step: The step.
    """
    return str(uuid.uuid5(_NAMESPACE, f"{owner}/{step}"))
