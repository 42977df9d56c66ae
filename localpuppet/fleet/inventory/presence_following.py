"""How presence is followed: one watch, and a listing now and then.

Owns: what is asked of the bus. Refuses to know: what is made of it, who is believed, outages.

Invariant: a node whose entry is not there any more is missed by a listing, also where the store
does not tell that an entry expired (NATS).
"""

import asyncio
from contextlib import aclosing
from typing import Protocol

from localpuppet.fleet.bus.key_value import Change, KeyValue, Listing
from localpuppet.fleet.bus.layout import PRESENCE
from localpuppet.fleet.bus.outage import unending

# Seconds between listings.
LOOK_AGAIN = 10.0


class PresenceBoard(Protocol):
    """Is told what nodes tell; nobody has verified it yet."""

    def take(self, change: Change) -> None:
        """Take what a change brought."""
        ...

    def miss(self, listing: Listing) -> None:
        """Take as gone what is not in a listing, unless it was written after that."""
        ...


async def listen(kv: KeyValue, board: PresenceBoard) -> None:
    """Tell a board every change, without an end.

    Call it in a task of its own: a group that failed leaves its task marked as cancelled.

    Args:
        kv: The bus, connected.
        board: Who is told.

    Raises:
        ExceptionGroup: The bus is away: of `UnavailableError`.
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
        board.miss(await kv.list(PRESENCE))
