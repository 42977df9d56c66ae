"""From the settings to kicks: what sends those that wait, and what a run says of its own."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.wiring.fleet import FleetWiring

if TYPE_CHECKING:
    from localpuppet.bus.key_value import KeyValue
    from localpuppet.inventory.entry import InventoryEntry
    from localpuppet.inventory.reading import InventoryReader
    from localpuppet.machine.ports import Log
    from localpuppet.triggers.kick_sending import KickSending


def kick_sending(
    fleet: FleetWiring, store: "Callable[[], Awaitable[KeyValue]]", log: "Log"
) -> "KickSending":
    """Return what sends the kicks of runs that are over.

    Args:
        fleet: The parts of a node of a fleet.
        store: Returns the bus, connected.
        log: What is said.
    """
    from localpuppet.triggers.kick_sending import KickSending

    clock = fleet.node.clock
    return KickSending(fleet.held_kicks, signer=fleet.signer, store=store, clock=clock, log=log)


def kick_texts(public: Path) -> tuple[str, ...]:
    """Return the queries that find whom the catalog of a run kicks, none twice.

    Args:
        public: The public directory of the run.

    Raises:
        StateError: What was noted cannot be read.
        InvalidInputError: It is not a kick.
    """
    from localpuppet.puppet.kicks import read_kicks

    kicks = read_kicks(public)
    if not kicks:
        return ()
    from localpuppet.triggers.kick import Kick

    return tuple(dict.fromkeys(text for kick in kicks for text in Kick.read(kick).texts))


def warn_of_cycles(
    note: Callable[[str], None],
    before: "InventoryEntry | None",
    now: "InventoryEntry",
    reader: "InventoryReader",
) -> None:
    """Say which cycles a catalog closes, where it kicks or asks others than it did.

    Args:
        note: Takes what a person should read.
        before: What the node said of its last good run.
        now: What it says of this one.
        reader: The inventory.

    Raises:
        StateError: The inventory cannot be read.
    """
    from localpuppet.orchestrator.roles.closing import asks_the_same, closed_cycles

    if before is None or not asks_the_same(before, now):
        for cycle in closed_cycles(reader, now):
            note(f"nodes make each other run: {cycle.shown} ('localpuppet kicks' says why)")
