"""Await a store's calls so that an outage never looks like a normal end.

This module decides what it means that a client library cancels a task, that a watch ends, and that
a store cannot be closed.
"""

import asyncio
from collections.abc import Awaitable, Collection
from typing import TypeVar

from localpuppet.base.errors import UnavailableError
from localpuppet.base.machine.ports import LineKind, Log
from localpuppet.fleet.bus.key_value import KeyValue, RefusedError

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
    """Cancel tasks until they end.

    A cancellation is lost if a connection fails at the same moment: `asyncio.wait_for` and task
    groups of Python 3.11 then raise the connection's error only, and the task tries again.

    Args:
        tasks: The tasks.
        again: Seconds after which tasks that continue are cancelled again.
    """
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=again)


class StoreChange:
    """Notices that a store was connected again, or is another one.

    Args:
        prefix: The prefix whose store counts.
    """

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
