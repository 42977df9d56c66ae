"""Follows rollouts on other machines by their checkpoints on the bus.

- An untrusted checkpoint is skipped and hides no other.
- If the bus is unreachable, the last known checkpoints stay.
- The checkpoint of a finished rollout has the result, but not the results of nodes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace

from localpuppet.base.errors import LocalpuppetError, UnavailableError
from localpuppet.base.formats.names import RolloutId
from localpuppet.fleet.bus.key_value import (
    Change,
    KeyListing,
    KeyRemoval,
    KeyValue,
    KeyValueEntry,
    entries,
)
from localpuppet.fleet.bus.outage import cancel_all
from localpuppet.rollout.execution.checkpoints import RolloutCheckpoint, RolloutCheckpoints
from localpuppet.rollout.execution.report import ELSEWHERE, RolloutReport

AGAIN = 5.0  # seconds until an unreachable bus is watched again
# Rollouts on other machines that are remembered, and those of them of which it is
# shown how far they are: the newest.
MOST = 500
MOST_SHOWN = 20


class RemoteRollouts:
    """The rollouts of one caller, as the bus has them.

    Args:
        heads: Returns the checkpoints on a bus.
        again: Seconds until an unreachable bus is watched again.
    """

    def __init__(
        self, heads: Callable[[KeyValue], RolloutCheckpoints], *, again: float = AGAIN
    ) -> None:
        self._heads = heads
        self._again = again
        self.heads: Mapping[RolloutId, RolloutCheckpoint] = {}  # another one after each change
        self.caller = ""  # known with the first of them

    async def follow(
        self,
        store: Callable[[], Awaitable[KeyValue]],
        changed: Callable[[], None],
        leave: asyncio.Event,
    ) -> None:
        """Keep the checkpoints up to date until `leave` is set.

        Args:
            store: Returns the bus, connected.
            changed: Called for each change.
            leave: Ends the function.
        """
        async with asyncio.TaskGroup() as group:
            following = group.create_task(self._follow(store, changed))
            await leave.wait()
            await cancel_all([following])

    async def _follow(
        self, store: Callable[[], Awaitable[KeyValue]], changed: Callable[[], None]
    ) -> None:
        while True:
            try:
                heads = self._heads(await store())
                async with aclosing(heads.watch()) as changes:
                    async for change in changes:
                        await self._take(heads, change)
                        changed()
            except UnavailableError:
                pass  # an unreachable bus is shown; without the right there are no checkpoints
            await asyncio.sleep(self._again)

    async def _take(self, heads: RolloutCheckpoints, change: Change) -> None:
        known = {} if isinstance(change, KeyListing) else dict(self.heads)
        if isinstance(change, KeyRemoval):
            known = {
                rollout: known[rollout] for rollout in known if heads.key(rollout) != change.key
            }
        for entry in entries(change):
            # Large ones take a while to unpack.
            head = await asyncio.to_thread(_believed, heads, entry)
            if head is not None:
                known[head.rollout] = head
        self.caller = heads.owner.caller
        newest = sorted(known, reverse=True)[:MOST]
        shown = [rollout for rollout in newest if not known[rollout].over][:MOST_SHOWN]
        self.heads = {
            rollout: known[rollout] if rollout in shown else replace(known[rollout], events=())
            for rollout in newest
        }


def report_of(head: RolloutCheckpoint) -> RolloutReport | None:
    """Return the progress of a rollout on another machine; `None` if its checkpoint lacks it."""
    if not head.events:
        return None
    return replace(RolloutReport.of(head.events, taken=True), word=ELSEWHERE)


def _believed(heads: RolloutCheckpoints, entry: KeyValueEntry) -> RolloutCheckpoint | None:
    try:
        return heads.believed(entry).head
    except LocalpuppetError:
        return None
