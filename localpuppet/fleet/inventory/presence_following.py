"""Follow the presence entries on the bus with one watch and regular listings.

- A listing detects expired entries, also in a store that does not report them (NATS).
"""

import asyncio
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from typing import Protocol

from localpuppet.base.errors import UnavailableError
from localpuppet.fleet.bus.key_value import Change, KeyListing, KeyValue
from localpuppet.fleet.bus.layout import PRESENCE
from localpuppet.fleet.bus.outage import unending

# Seconds between listings.
LOOK_AGAIN = 10.0


class PresenceBoard(Protocol):
    """Receives presence entries that are not verified yet."""

    def take(self, change: Change) -> None:
        """Process a change."""

    def full(self, reason: str) -> None:
        """Note that the bus has no room: entries that expire are no sign of their nodes."""

    def miss(self, names: AbstractSet[str], revision: int) -> None:
        """Remove nodes that a listing lacks, unless their entry is newer.

        Args:
            names: The nodes in the listing.
            revision: The revision of the listing.
        """


async def listen(kv: KeyValue, board: PresenceBoard) -> None:
    """Pass each change to a board, without end.

    Call it in a separate task: a failed group leaves its task marked as cancelled.

    Args:
        kv: The connected bus.
        board: The receiver.

    Raises:
        ExceptionGroup: The bus is unreachable: a group of `UnavailableError`.
    """
    async with asyncio.TaskGroup() as group:
        group.create_task(unending(_watch(kv, board)))
        group.create_task(unending(_look(kv, board)))


async def _watch(kv: KeyValue, board: PresenceBoard) -> None:
    async with aclosing(kv.watch(PRESENCE)) as changes:
        async for change in changes:
            board.take(change)


async def _look(kv: KeyValue, board: PresenceBoard) -> None:
    while True:
        await asyncio.sleep(LOOK_AGAIN)
        if full := await kv.fullness():
            board.full(full)
        else:
            board.miss(*await _present(kv))


async def _present(kv: KeyValue) -> tuple[AbstractSet[str], int]:
    """Return the nodes in a listing, and its revision, with the memory of one part."""
    names: set[str] = set()
    async with aclosing(kv.watch(PRESENCE, parts=True)) as changes:
        async for change in changes:
            if isinstance(change, KeyListing):
                names.update(entry.key.removeprefix(PRESENCE) for entry in change.entries)
                if not change.more:
                    return names, change.revision
    raise UnavailableError("the listing ended too early", where="bus")
