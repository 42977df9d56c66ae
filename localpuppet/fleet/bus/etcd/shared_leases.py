"""Leases of etcd's for values that expire: writes of some seconds share one.

Each lease costs the cluster a write of its own, through its log and to its disk; a node that
replies and tells how it is does that several times in a few seconds.

Owns: for how long a lease is given to further writes. Refuses to know: how one is asked for.

Invariants:

- A value is there for its ttl at least, counted from the write: a lease lives longer by a spare
  time, is shared for less than that, and `covers` says whether a write that took long can count on
  it. The server's time goes on while this machine sleeps, and so does ours.
- A lease with which a write failed is given to no other: the server may not know it any more.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

# Seconds that a lease lives beyond its ttl: the part of the ttl, the least and the most.
PART, LEAST, MOST = 10, 1, 6
# How much of these is for the writes themselves.
FOR_WRITES = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A lease of the server's; `id` 0 for a value that stays.

    Attributes:
        id: What the server calls it.
        covers_until: A write that is over by then stays for its ttl; see `SharedLeases.covers`.
    """

    id: int
    covers_until: float


def _awake_or_not() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SharedLeases:
    """The leases of one client.

    Args:
        grant: Asks the server for a lease of so many seconds, and returns what it calls that.
        monotonic: Seconds that only go forward, also while the machine sleeps.
    """

    def __init__(
        self,
        grant: Callable[[int], Awaitable[int]],
        *,
        monotonic: Callable[[], float] = _awake_or_not,
    ) -> None:
        self._grant = grant
        self._monotonic = monotonic
        self._shared: dict[int, tuple[float, asyncio.Task[Lease]]] = {}

    async def of(self, ttl: float | None) -> Lease:
        """Return the lease for a value that stays for `ttl` seconds; for ever for `None`.

        Raises:
            UnavailableError: The server gives none.
        """
        if ttl is None:
            return Lease(id=0, covers_until=math.inf)
        seconds = math.ceil(ttl)
        now = self._monotonic()
        until, task = self._shared.get(seconds, (-math.inf, None))
        if task is None or now > until or _failed(task):
            spare = min(MOST, max(LEAST, seconds // PART))
            task = asyncio.create_task(self._new(seconds + spare, now + spare))
            task.add_done_callback(_failed)  # all its writers may have been cancelled
            self._shared[seconds] = now + spare - FOR_WRITES, task
        # A writer that is cancelled takes the lease from nobody else.
        return await asyncio.shield(task)

    def covers(self, lease: Lease) -> bool:
        """Return whether a write that is over now stays for its ttl."""
        return self._monotonic() <= lease.covers_until

    def forget(self, lease: Lease) -> None:
        """Give a lease to no further write: one with it failed."""
        for seconds, (_, task) in list(self._shared.items()):
            if task.done() and not _failed(task) and task.result() == lease:
                del self._shared[seconds]

    def close(self) -> None:
        """Ask for none any more."""
        for _, task in self._shared.values():
            task.cancel()

    async def _new(self, seconds: int, covers_until: float) -> Lease:
        return Lease(id=await self._grant(seconds), covers_until=covers_until)


def _failed(task: "asyncio.Task[Lease]") -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
