"""The options of a rollout."""

from datetime import datetime
from enum import StrEnum

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.times import show_duration
from localpuppet.base.value import Value
from localpuppet.fleet.requests.arguments import MAX_HOLD
from localpuppet.rollout.execution.amount import Amount
from localpuppet.rollout.execution.delivery import Delivery
from localpuppet.rollout.plans.check import Check

NONE = Amount(number=0, percent=False)
TIMEOUT = 3600.0
PAUSE_AT_MOST = 3600.0


class OnFailure(StrEnum):
    """What a rollout does after more failures than allowed."""

    STOP = "stop"
    PAUSE = "pause"
    ROLLBACK = "rollback"  # stop, then roll the nodes back to their previous release


class PauseAfter(StrEnum):
    """After which nodes a rollout waits for an operator."""

    CANARIES = "canaries"
    GROUPS = "groups"


class RolloutOptions(Value):
    """The options of a rollout.

    Attributes:
        canary: Number of nodes of each group that run before the others of the group; if one
            fails, the rollout ends. 0 for none.
        batch: Number of nodes of a group that run together; the next batch starts when all have
            ended. `None` for the whole group.
        window: Number of nodes of a group that run at a time; the next node starts when one has
            ended. `None` for no limit; excludes `batch`.
        max_failures: How many of the selected nodes may fail without ending the rollout.
        tags: Puppet tags that limit the runs; empty for all resources.
        timeout: Seconds within which a node has to report its result.
        skip_unready: Leave out nodes that are not ready, instead of rejecting the rollout.
        on_failure: What happens after more failures than allowed, or a failed canary.
        pause: After which nodes the rollout waits for an operator, even without failures.
        pause_at_most: Seconds after which a paused rollout is stopped.
        investigate: Seconds for which failed nodes stay on hold after the end; `None` to release
            them as well.
        one_at_a_time_by: A fact: nodes with different values of it do not run at the same time.
        until: The time, UTC, by which all runs must have ended; `None` for no limit.
        delivery: The release that the nodes take; `None` to run what they have.
    """

    canary: int = 0
    batch: Amount | None = None
    window: int | None = None
    max_failures: Amount = NONE
    noop: bool = False
    tags: tuple[str, ...] = ()
    timeout: float = TIMEOUT
    skip_unready: bool = False
    checks: tuple[Check, ...] = ()
    on_failure: OnFailure = OnFailure.STOP
    pause: tuple[PauseAfter, ...] = ()
    pause_at_most: float = PAUSE_AT_MOST
    investigate: float | None = None
    one_at_a_time_by: str | None = None
    until: datetime | None = None
    delivery: Delivery | None = None

    def __post_init__(self) -> None:
        """Reject options that contradict each other."""
        if self.batch is not None and self.window is not None:
            raise InvalidInputError("--batch and --window exclude each other")
        if self.batch is not None and self.batch.number < 1:
            raise InvalidInputError("is 0, must be 1 or more", where="--batch")
        if self.noop and self.checks:
            raise InvalidInputError(
                "--noop and --check exclude each other: a check needs a changed node"
            )
        if self.delivery is not None and (self.noop or self.tags):
            raise InvalidInputError(
                "--release excludes --noop and --tags: nodes run a whole release"
            )
        if self.delivery is None and self.on_failure is OnFailure.ROLLBACK:
            raise InvalidInputError("--on-failure rollback requires --release")
        if self.investigate is not None and self.investigate > MAX_HOLD:
            raise InvalidInputError(
                f"is more than {show_duration(MAX_HOLD)}, the longest hold",
                where="--investigate",
            )
