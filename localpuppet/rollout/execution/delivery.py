"""The release that a rollout delivers, with its layers and class parameters."""

from dataclasses import field

from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.value import Value
from localpuppet.fleet.requests.arguments import Deploy, DeployAction, RolloutReference
from localpuppet.node.enc.document import Classes


class Delivery(Value):
    """What each node takes before it runs.

    Attributes:
        layers: Layers that replace those of the nodes' inputs; empty to keep them.
        classes: Classes and parameters that override those of the inputs.
        allow_older: Whether the release may be older than what a node runs.
    """

    release: ReleasePath
    layers: tuple[str, ...] = ()
    classes: Classes = field(default_factory=dict)
    allow_older: bool = False

    def __post_init__(self) -> None:
        """Reject a delivery that no node would take, before the rollout begins.

        Raises:
            InvalidInputError: See `Deploy`.
        """
        self.ask(DeployAction.STAGE, serial=1, rollout=None)

    @property
    def rights(self) -> tuple[str, ...]:
        """The rights that each node's policy must grant."""
        return self.ask(DeployAction.STAGE, serial=1, rollout=None).rights

    def ask(self, deed: DeployAction, *, serial: int, rollout: RolloutReference | None) -> Deploy:
        """Return the request for a node.

        Raises:
            InvalidInputError: No node would take it; see `Deploy`.
        """
        return Deploy(
            release=self.release,
            action=deed,
            serial=serial,
            layers=self.layers,
            classes=self.classes,
            allow_older=self.allow_older,
            rollout=rollout,
        )
