"""Tasks of a bus that end although a lost connection swallows their cancellation."""

import asyncio

from localpuppet.fleet.bus.outage import cancel_all


def test_a_task_that_loses_a_cancellation_is_cancelled_again() -> None:
    lost = 0

    async def connecting() -> None:
        nonlocal lost
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if lost == 2:
                    raise
                lost += 1  # as if the connection had failed at that moment

    async def waiting() -> None:
        await asyncio.Event().wait()

    async def end() -> tuple[bool, bool]:
        tasks = [asyncio.create_task(connecting()), asyncio.create_task(waiting())]
        await asyncio.sleep(0)
        await cancel_all(tasks, again=0.001)
        return tasks[0].cancelled(), tasks[1].cancelled()

    assert asyncio.run(end()) == (True, True)
    assert lost == 2
