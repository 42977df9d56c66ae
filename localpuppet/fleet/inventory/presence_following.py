"""Follow the presence entries on the bus with one watch and regular listings.

- A listing detects expired entries, also in a store that does not report them (NATS).
"""

import asyncio
from contextlib import aclosing
from typing import Protocol

from localpuppet.fleet.bus.key_value import Change, KeyListing, KeyValue
from localpuppet.fleet.bus.layout import PRESENCE
from localpuppet.fleet.bus.outage import unending

# Seconds between listings.
LOOK_AGAIN = 10.0


class PresenceBoard(Protocol):
    """Receives presence entries that are not verified yet."""

    def take(self, change: Change) -> None:
        """Process a change."""
        ...

    def miss(self, listing: KeyListing) -> None:
        """Remove nodes that are not in a listing, unless their entry is newer than the listing."""
        ...


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
        board.miss(await kv.list(PRESENCE))
