"""Leases of etcd for values that expire: writes within a few seconds share one.

Each lease costs the cluster a write through its log and to its disk; a node that replies and
publishes its status would need several within seconds.

- A value stays for at least its ttl, counted from the write. A lease lives longer by a spare time
  and is shared for less than that; `covers` says whether it still covers a slow write. The clocks
  of the server and of this module count time while the machine sleeps.
- After a failed write, its lease is not used again: the server may no longer know it.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field

from localpuppet.base.machine.clock import seconds_since_boot
from localpuppet.base.value import Value

# Seconds that a lease lives beyond its ttl: the ttl divided by PART, from LEAST to MOST.
PART, LEAST, MOST = 10, 1, 6
# Seconds of the spare time that are reserved for the writes themselves.
FOR_WRITES = 0.75


class EtcdLease(Value):
    """A lease of the server; `id` 0 for a value that does not expire.

    Attributes:
        id: The server's id.
        covers_until: A write that ends by then stays for its ttl; see `SharedLeases.covers`.
    """

    id: int
    covers_until: float


@dataclass(slots=True, eq=False)
class SharedLeases:
    """The leases of one client.

    Attributes:
        grant: Requests a lease of some seconds from the server, and returns its id.
        monotonic: A monotonic clock that also counts while the machine sleeps.
    """

    grant: Callable[[int], Awaitable[int]]
    _: KW_ONLY
    monotonic: Callable[[], float] = seconds_since_boot
    _shared: dict[int, tuple[float, asyncio.Task[EtcdLease]]] = field(
        default_factory=dict, init=False
    )

    async def of(self, ttl: float | None) -> EtcdLease:
        """Return the lease for a value that stays for `ttl` seconds; `None` for no expiry."""
        if ttl is None:
            return EtcdLease(id=0, covers_until=math.inf)
        seconds = math.ceil(ttl)
        now = self.monotonic()
        until, task = self._shared.get(seconds, (-math.inf, None))
        if task is None or now > until or _failed(task):
            spare = min(MOST, max(LEAST, seconds // PART))
            task = asyncio.create_task(self._new(seconds + spare, now + spare))
            task.add_done_callback(_failed)  # all its writers may have been cancelled
            self._shared[seconds] = now + spare - FOR_WRITES, task
        # A cancelled writer must not cancel the lease for others.
        return await asyncio.shield(task)

    def covers(self, lease: EtcdLease) -> bool:
        """Return whether a write that ends now stays for its ttl."""
        return self.monotonic() <= lease.covers_until

    def forget(self, lease: EtcdLease) -> None:
        """Stop sharing a lease after a write with it failed."""
        for seconds, (_, task) in list(self._shared.items()):
            if task.done() and not _failed(task) and task.result() == lease:
                del self._shared[seconds]

    def close(self) -> None:
        """Cancel pending requests."""
        for _, task in self._shared.values():
            task.cancel()

    async def _new(self, seconds: int, covers_until: float) -> EtcdLease:
        return EtcdLease(id=await self.grant(seconds), covers_until=covers_until)


def _failed(task: "asyncio.Task[EtcdLease]") -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
