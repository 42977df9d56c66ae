"""Tasks, deadlines and pauses of a bus whose connection is lost."""

import asyncio

import pytest

from localpuppet.fleet.bus.key_value import end_of_step, in_time
from localpuppet.fleet.bus.store_calls import FIRST, LONGEST, Backoff, cancel_all


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


class Store:
    """A store with calls.

    Args:
        timeout: Seconds for each call.
        other: Another store, whose call is a step of this store's call.
    """

    def __init__(self, timeout: float, other: "Store | None" = None) -> None:
        self.timeout = timeout
        self._other = other

    @in_time
    async def call(self) -> list[float]:
        """Return the ends of steps: here, in a task, those of the other's call, and here again."""
        nested = await self._other.call() if self._other else []
        return [
            end_of_step(1000.0),
            await asyncio.create_task(step()),
            *nested,
            end_of_step(1000.0),
        ]


async def step() -> float:
    """Return the end of a step."""
    return end_of_step(1000.0)


async def test_a_nested_call_has_no_later_deadline() -> None:
    assert len(set(await Store(10.0, Store(100.0)).call())) == 1
    own, *nested, again = await Store(100.0, Store(10.0)).call()
    assert own == again
    assert max(nested[1:]) < own


async def test_others_have_their_own_time() -> None:
    first, second, free = await asyncio.gather(Store(10.0).call(), Store(100.0).call(), step())
    assert max(first) < min(second)
    assert max(second) < free
    assert end_of_step(1000.0) > free


@pytest.mark.parametrize(("chance", "part"), [(0.0, 0.5), (0.5, 0.75), (1.0, 1.0)])
def test_pauses_double_up_to_the_longest_and_can_be_reset(chance: float, part: float) -> None:
    backoff = Backoff(lambda: chance)
    pauses = [backoff.pause() for _ in range(5)]
    assert pauses == pytest.approx([part * s for s in (FIRST, 0.2, 0.4, LONGEST, LONGEST)])
    backoff.reset()
    assert backoff.pause() == pytest.approx(part * FIRST)


def test_two_clients_have_different_pauses() -> None:
    one, other = Backoff(), Backoff()
    assert [one.pause() for _ in range(8)] != [other.pause() for _ in range(8)]
