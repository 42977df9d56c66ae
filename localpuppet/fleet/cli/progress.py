"""Shows the progress and duration of a command that waits for other nodes."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from localpuppet.node.cli import render

TICK = 0.25


@asynccontextmanager
async def shown(observer: render.QuietObserver) -> AsyncGenerator[None, None]:
    """Show an observer's progress line, with the elapsed seconds, until the block ends."""
    observer.begin()
    ticking = asyncio.create_task(_tick(observer))
    try:
        yield
    finally:
        ticking.cancel()
        observer.close()


def whom(names: Sequence[str]) -> str:
    """Return the name of a single node, or the number of nodes."""
    return names[0] if len(names) == 1 else render.counted(len(names), "node")


async def _tick(observer: render.QuietObserver) -> None:
    clock = asyncio.get_running_loop().time
    begun = clock()
    while True:
        observer.tick(clock() - begun)
        await asyncio.sleep(TICK)
