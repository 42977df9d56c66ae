"""What surrounds calls to a store: pauses between attempts, outages, and the room of a listing.

This module decides what it means that a client library cancels a task, that a watch ends, and that
a store cannot be closed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from random import SystemRandom
from typing import TypeVar

from localpuppet.base.errors import UnavailableError
from localpuppet.base.machine.ports import LineKind, Log
from localpuppet.fleet.bus.bus_limits import MAX_LISTING
from localpuppet.fleet.bus.key_value import KeyValue, KeyValueEntry, RefusedError

Result = TypeVar("Result")
# Seconds after which a task that continues despite its cancellation is cancelled again.
CANCEL_AGAIN = 1.0
# Seconds between two looks at the beginning of a store that stays connected.
LOOK = 30.0


async def ours(work: Awaitable[Result]) -> Result:
    """Await a store's call; a cancellation by the store's library is an outage.

    A client library that cancels what waits for a lost connection would end the calling task
    silently: a task group takes a cancelled task for one that was meant to end.
    """
    try:
        return await work
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise UnavailableError("the connection was lost", where="bus") from error


async def cancel_all(
    tasks: Collection["asyncio.Task[None]"], *, again: float = CANCEL_AGAIN
) -> None:
    """Cancel tasks until they end; again after some seconds.

    A cancellation is lost if a connection fails at the same moment: `asyncio.wait_for` and task
    groups of Python 3.11 then raise the connection's error only, and the task tries again.
    """
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=again)


class StoreChange:
    """Notices that a store was connected again, or is another one."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._kv: KeyValue | None = None
        self._due = 0.0
        self.born = 0.0

    async def noticed(self, kv: KeyValue) -> bool:
        """Return whether what was written before may be missing in the store."""
        now = asyncio.get_running_loop().time()
        if kv is self._kv and now < self._due:
            return False
        born = await ours(kv.born(self._prefix))
        changed = kv is not self._kv or born != self.born
        self._kv, self._due, self.born = kv, now + LOOK, born
        return changed


def is_outage(error: BaseException) -> bool:
    """Return whether an error is an outage of the bus, and not a refusal by it."""
    return isinstance(error, UnavailableError) and not isinstance(error, RefusedError)


def log_failure(log: Log, text: str, error: BaseException) -> None:
    """Log why a follower of the bus is not current.

    The owner of the connection logs an outage, once for all that use it: here it is a detail.
    """
    (log.debug if is_outage(error) else log.warning)(f"{text}: {error}", kind=LineKind.INVENTORY)


async def unending(work: Awaitable[None]) -> None:
    """Await a task that must not end: its end is an outage.

    An agent whose watch ended without an error would miss all changes, without noticing.
    """
    await ours(work)
    raise UnavailableError("the bus follower ended without an error", where="bus")


async def close(kv: KeyValue | None, log: Log) -> None:
    """Close a store, if given; an unreachable server does not matter any more."""
    if kv is None:
        return
    try:
        await ours(kv.close())
    except UnavailableError as error:
        log.debug(f"closing the bus: {error}", kind=LineKind.BUS)


_CHANCE = SystemRandom().random
FIRST = 0.1
LONGEST = 0.5


class Backoff:
    """Pauses between attempts to reach an unreachable server.

    All nodes lose a server at the same moment, so each pause is random: from half of a time to all
    of it. That time doubles from `FIRST` seconds to the longest.
    """

    def __init__(self, chance: Callable[[], float] = _CHANCE, *, longest: float = LONGEST) -> None:
        self._chance = chance
        self._longest = longest
        self._whole = FIRST

    def reset(self) -> None:
        """Start again with the shortest pause, after the server has answered."""
        self._whole = FIRST

    def pause(self) -> float:
        """Return the seconds of the next pause."""
        whole, self._whole = self._whole, min(2 * self._whole, self._longest)
        return whole * (1 + self._chance()) / 2


class ListingEntries:
    """The entries of a listing, in memory: at most `limit` bytes of keys and values."""

    def __init__(self, prefix: str, where: str, *, limit: int = MAX_LISTING) -> None:
        self._limit = limit
        self._prefix = prefix
        self._where = where
        self._size = 0
        self.entries: list[KeyValueEntry] = []

    def add(self, entries: Iterable[KeyValueEntry]) -> None:
        for entry in entries:
            self._size += len(entry.key) + len(entry.value)
            if self._size > self._limit:
                raise UnavailableError(
                    f"holds more than {self._limit / 1024**2:g} MiB below {self._prefix}",
                    where=self._where,
                    hint="find out which node writes that much",
                )
            self.entries.append(entry)
