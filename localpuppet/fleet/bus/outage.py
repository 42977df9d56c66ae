"""Awaiting a store's calls so that an outage is never taken for an end.

Owns: what it means that a client library cancels a task of ours, that a watch ends, and that a
store cannot be closed. Refuses to know: engines.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from localpuppet.base.errors import UnavailableError
from localpuppet.base.machine.ports import LineKind, Log
from localpuppet.fleet.bus.key_value import KeyValue

Result = TypeVar("Result")


async def ours(work: Awaitable[Result]) -> Result:
    """Await a store's call; that it was cancelled, and not by us, is an outage.

    A client library that cancels what waits for a lost connection would end our task in silence:
    a group takes a cancelled task for one that was meant to end.

    Raises:
        UnavailableError: It was cancelled by the store's library, or failed.
    """
    try:
        return await work
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise UnavailableError("the connection was lost", where="bus") from error


async def unending(work: Awaitable[None]) -> None:
    """Await what has no end: that it ends all the same is an outage.

    An agent whose watch had ended without an error would be deaf, and not know it.

    Raises:
        UnavailableError: It ended.
    """
    await ours(work)
    raise UnavailableError("what follows the bus has ended without an error", where="bus")


async def close(kv: KeyValue | None, log: Log) -> None:
    """Close a store, if there is one; that its server is away matters to nobody any more."""
    if kv is None:
        return
    try:
        await ours(kv.close())
    except UnavailableError as error:
        log.debug(f"closing the bus: {error}", kind=LineKind.BUS)
