"""Answers Puppet code in a run: the service, and the variables by which code reaches it."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.fleet.wiring.fleet import FleetWiring, fleet_settings, open_held_kicks, peers
from localpuppet.node.app import NodeApp

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
        records=fleet.node.records,
        name=fleet.signer.name,
    )


def own_variables(node: NodeApp) -> dict[str, str]:
    """Return the environment variables by which Puppet code of a run reaches localpuppet."""
    settings = peers(node)
    always = {"LOCALPUPPET_KICK": "always"} if settings.kick_always else {}
    return {
        "LOCALPUPPET_ROOT": str(node.settings.root),
        "LOCALPUPPET_SOCKET": str(settings.socket),
        "LOCALPUPPET_COMMAND": own_command(),
        **always,
    }


def own_command() -> str:
    """Return the shell command that calls this very program from any environment."""
    return shlex.join(own_words())


def own_words() -> list[str]:
    """Return the command words that call this very program from any environment."""
    script = Path(__file__).parents[3] / "localpuppet.py"
    return [sys.executable, str(script)] if script.is_file() else module_words("localpuppet")


def module_words(name: str) -> list[str]:
    """Return the command words that run a Python module of this program.

    Without `-P`, `python -m` imports from the working directory first, which may belong to another
    user. If this process runs with `-I`, the command keeps it: Python then also ignores its
    environment variables.

    Args:
        name: The module.
    """
    return [sys.executable, "-I" if sys.flags.isolated else "-P", "-m", name]
