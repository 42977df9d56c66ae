"""Builds the service that answers Puppet code, in the agent and in `localpuppet call`."""

from typing import TYPE_CHECKING

from localpuppet.fleet.wiring.fleet import FleetWiring, fleet_settings, open_held_kicks
from localpuppet.node.wiring.state import open_records

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from localpuppet.fleet.agent.puppet_calls import ExportCalls, InventoryCalls, Paths, PuppetCalls
    from localpuppet.fleet.bus.key_value import KeyValue
    from localpuppet.fleet.leases.keeper import Keeper


def puppet_calls(
    fleet: FleetWiring,
    inventory: "InventoryCalls",
    exports: "ExportCalls",
    *,
    store: "Callable[[str | None], AbstractAsyncContextManager[KeyValue]]",
    paths: "Paths",
    keeper: "Keeper | None" = None,
) -> "PuppetCalls":
    """Return the service that answers Puppet code.

    Args:
        fleet: The parts of a fleet node.
        inventory: Answers questions about nodes.
        exports: Answers exports and collectors.
        store: Lends the store of an engine.
        paths: Returns the paths of a run's causes.
        keeper: This node's leases; `None` in a process that cannot renew them.
    """
    from localpuppet.fleet.agent.puppet_calls import PuppetCalls, Sender, TriggerCalls

    sender = Sender(
        store=store,
        signer=fleet.signer,
        paths=paths,
        keyprefix=fleet_settings(fleet.node).agent.keyprefix,
        clock=fleet.node.clock,
    )
    return PuppetCalls(
        triggers=TriggerCalls(sender, inventory=inventory, held=open_held_kicks(fleet.node)),
        inventory=inventory,
        exports=exports,
        keeper=keeper,
        records=open_records(fleet.node),
        name=fleet.signer.name,
    )
