"""Connects a node's runs with the fleet: their environment, and what is published afterwards."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from localpuppet.fleet.wiring.fleet import fleet_settings
from localpuppet.node.app import Neighbours, NodeApp

if TYPE_CHECKING:
    from localpuppet.base.formats.names import NodeName, ReleasePath
    from localpuppet.base.formats.values import Json
    from localpuppet.fleet.inventory.entry import InventoryEntry
    from localpuppet.node.releases.ledger import AppliedElsewhere
    from localpuppet.node.releases.staged import StagedRelease
    from localpuppet.node.runs.records import RunDirectory
    from localpuppet.node.runs.run import Attempt, Status


class FleetNeighbours(Neighbours):
    """The fleet that a node belongs to.

    Args:
        node: The parts of the node.
    """

    def __init__(self, node: NodeApp) -> None:
        self._node = node

    @property
    def variables(self) -> Mapping[str, str]:
        """The root, the agent's socket and the command for Puppet code."""
        from localpuppet.fleet.wiring.puppet_calls import own_variables

        return own_variables(self._node)

    @property
    def certname(self) -> str:
        """The setting `node`; empty if it is not set."""
        return fleet_settings(self._node).node or ""

    @property
    def exchange_resources(self) -> bool:
        """Whether the settings name a bus."""
        return fleet_settings(self._node).bus.named

    def applied_elsewhere(
        self, app: "ReleasePath", note: Callable[[str], None]
    ) -> "AppliedElsewhere | None":
        """Return the release in this node's own entry on the bus; see `ReinstalledNode.applied`."""
        from localpuppet.fleet.wiring.reinstalled_node import ReinstalledNode

        return ReinstalledNode(self._node).applied(app.source, note)

    def facts(self, name: "NodeName") -> "Mapping[str, Json] | None":
        """Return the facts in the inventory entry of a node."""
        from localpuppet.fleet.wiring.fleet import run
        from localpuppet.fleet.wiring.inventory import InventoryWiring

        inventory = InventoryWiring(self._node)

        async def read() -> "InventoryEntry | None":
            async with inventory.reader(lambda _text: None) as view:
                return inventory.ask(view, lambda reader: reader.entry(name)).answer

        entry = run(read())
        return None if entry is None else entry.facts

    def compare_tag(self, staged: "StagedRelease") -> None:
        """Refuse a tag that the entries of other nodes contradict."""
        from localpuppet.fleet.wiring.reinstalled_node import compare_with_fleet

        compare_with_fleet(self._node, staged)

    def after_run(self, note: Callable[[str], None], run: "RunDirectory", status: "Status") -> None:
        """Publish a run's summary and what it has for others; see `PublishingWiring`."""
        from localpuppet.fleet.wiring.publishing import PublishingWiring

        PublishingWiring(self._node).after_run(note, run, status)

    def after_refusal(self, note: Callable[[str], None], attempt: "Attempt") -> None:
        """Publish the summary of a refused apply; see `PublishingWiring`."""
        from localpuppet.fleet.wiring.publishing import PublishingWiring

        PublishingWiring(self._node).after_refusal(note, attempt)

    def after_command(
        self, note: Callable[[str], None], user: str, action: str, subject: str
    ) -> None:
        """Publish that a user changed the holds on this node; see `PublishingWiring`."""
        if not fleet_settings(self._node).bus.named:
            return
        from localpuppet.fleet.wiring.publishing import PublishingWiring

        PublishingWiring(self._node).after_command(note, user, action, subject)
