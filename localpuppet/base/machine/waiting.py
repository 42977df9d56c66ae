"""Wait for events and tasks in an event loop.

This module decides what happens to a wait that is no longer needed: it is cancelled, and the work
of others continues.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def wait_first(
    *things: "asyncio.Event | asyncio.Future[Any]", seconds: float | None = None
) -> None:
    """Wait until an event is set or a task has ended; the tasks continue.

    This is not `asyncio.wait_for`: up to Python 3.11, that loses a cancellation if the awaited
    event arrives at the same time, and the caller would never end.

    Args:
        seconds: The longest time to wait; without it, there is no limit.
    """
    events = [asyncio.create_task(it.wait()) for it in things if isinstance(it, asyncio.Event)]
    tasks = [it for it in things if not isinstance(it, asyncio.Event)]
    try:
        await asyncio.wait([*events, *tasks], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for event in events:
            event.cancel()


async def run_until(leave: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Await work until `leave` is set; cancel it then."""
    working = asyncio.create_task(work)
    try:
        await wait_first(working, leave)
        if working.done():
            await working
    finally:
        working.cancel()


def retrieve_error(task: "asyncio.Task[Any]") -> None:
    """Retrieve the error of a task, so that asyncio logs none; a later `await` raises it again."""
    if not task.cancelled():
        task.exception()
