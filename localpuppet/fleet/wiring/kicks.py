"""From settings to kicks: sends those that wait, and warns of cycles."""

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.machine.ports import LineKind, Log
from localpuppet.fleet.wiring.fleet import FleetWiring, open_held_kicks

if TYPE_CHECKING:
    from localpuppet.fleet.bus.key_value import KeyValue
    from localpuppet.fleet.inventory.entry import InventoryEntry
    from localpuppet.fleet.inventory.outbox import Outbox
    from localpuppet.fleet.inventory.reading import InventoryReader
    from localpuppet.fleet.triggers.kicks import KickSending

# Seconds for the search for cycles after a run whose kicks or queries changed.
LOOK = 5.0


def kick_sending(
    fleet: FleetWiring, store: "Callable[[], Awaitable[KeyValue]]", log: Log
) -> "KickSending":
    """Return the service that sends the kicks of finished runs.

    Args:
        fleet: The parts of a fleet node.
        store: Returns the bus, connected.
        log: The log of the service.
    """
    from localpuppet.fleet.triggers.kicks import KickSending

    clock = fleet.node.clock
    held = open_held_kicks(fleet.node)
    return KickSending(held, signer=fleet.signer, store=store, clock=clock, log=log)


def kick_texts(public: Path) -> tuple[str, ...]:
    """Return the queries, without duplicates, for the nodes that a run's catalog kicks.

    Args:
        public: The public directory of the run.

    Raises:
        StateError: The recorded kicks cannot be read.
        InvalidInputError: A record is not a kick.
    """
    from localpuppet.node.puppet.noted import KICKS, read_noted

    kicks = read_noted(public, KICKS)
    if not kicks:
        return ()
    from localpuppet.fleet.triggers.kicks import Kick

    return tuple(dict.fromkeys(text for kick in kicks for text in Kick.read(kick).texts))


def warn_of_cycles(
    note: Callable[[str], None],
    before: "InventoryEntry | None",
    now: "InventoryEntry",
    reader: "InventoryReader",
) -> None:
    """Warn of the cycles that a catalog closes, if its kicks or queries changed.

    Args:
        note: Takes what a person should read.
        before: The node's entry of its last good run.
        now: The node's entry of this run.
        reader: The inventory.

    Raises:
        StateError: The inventory cannot be read.
    """
    from localpuppet.fleet.roles.closing import asks_the_same, closed_cycles

    if not (now.kicks or now.queries) or (before is not None and asks_the_same(before, now)):
        return
    end = time.monotonic() + LOOK
    for cycle in closed_cycles(reader, before, now, lambda: time.monotonic() > end):
        note(f"nodes make each other run: {cycle.shown} ('localpuppet kicks' shows why)")


class CycleWatch:
    """Checks after each good run whether it closed a cycle, as long as an agent lives.

    Args:
        outbox: The node's own entry.
        reader: The entries of other nodes.
        log: The log for warnings.
    """

    def __init__(self, outbox: "Outbox", reader: "InventoryReader", log: Log) -> None:
        self._outbox = outbox
        self._reader = reader
        self._log = log
        self._stamp = outbox.stamp()
        self._before: InventoryEntry | None = None
        self._begun = False

    async def step(self) -> None:
        """Check the node's entry for cycles, if it changed."""
        import asyncio

        stamp = self._outbox.stamp()
        if self._begun and stamp == self._stamp:
            return
        try:
            now = self._outbox.entry()
            if now is not None and self._begun:
                await asyncio.to_thread(warn_of_cycles, self._warn, self._before, now, self._reader)
        except LocalpuppetError as error:
            self._warn(f"could not check whether a run closed a cycle: {error}")
        else:
            self._before = now
        self._stamp, self._begun = stamp, True

    def _warn(self, text: str) -> None:
        self._log.warning(text, kind=LineKind.KICK)
