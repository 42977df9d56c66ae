"""A client with many queries waits for its own, and others do not wait for them."""

import asyncio
from contextlib import suppress

import pytest

from localpuppet.base.errors import BusyError
from localpuppet.web.puppetdb.turns import TurnLimits, Turns


class Desk:
    """Clients at turns: `order` has those that got one, in order."""

    def __init__(self, limits: TurnLimits) -> None:
        self.turns = Turns(limits)
        self.order: list[str] = []
        self.running: dict[str, list[asyncio.Event]] = {}
        self.tasks: list[asyncio.Task[None]] = []

    async def come(self, *clients: str) -> None:
        for client in clients:
            self.tasks.append(asyncio.create_task(self._hold(client)))
            await asyncio.sleep(0)

    async def _hold(self, client: str) -> None:
        async with self.turns.turn(client):
            end = asyncio.Event()
            self.order.append(client)
            self.running.setdefault(client, []).append(end)
            await end.wait()

    async def end(self, client: str) -> None:
        self.running[client].pop().set()
        for _ in range(4):
            await asyncio.sleep(0)

    async def leave(self) -> None:
        for task in self.tasks:
            task.cancel()
            with suppress(asyncio.CancelledError, BusyError):
                await task


def test_the_next_turn_belongs_to_the_next_client() -> None:
    async def main() -> None:
        desk = Desk(TurnLimits(running=1, running_of_one=1))
        await desk.come("a", "a", "a", "a", "b", "c", "b")
        for client in "abcab":
            await desk.end(client)
        assert "".join(desk.order) == "abcaba"
        await desk.leave()

    asyncio.run(main())


def test_one_client_does_not_get_all_turns() -> None:
    async def main() -> None:
        desk = Desk(TurnLimits(running=3, running_of_one=2))
        await desk.come("a", "a", "a", "a", "b")
        assert "".join(desk.order) == "aab"
        await desk.leave()

    asyncio.run(main())


@pytest.mark.parametrize(("client", "most"), [("a", 2), ("b", 3)])
def test_too_many_waiting_queries_are_rejected(client: str, most: int) -> None:
    async def main() -> None:
        desk = Desk(TurnLimits(running=1, running_of_one=1, waiting=3, waiting_of_one=2))
        await desk.come("a", "a", "a", *(["b"] if client == "b" else []))
        with pytest.raises(BusyError, match=f"{most} queries are waiting already"):
            async with desk.turns.turn(client):
                pass
        await desk.leave()

    asyncio.run(main())


def test_a_client_that_gives_up_leaves_its_place() -> None:
    async def main() -> None:
        desk = Desk(TurnLimits(running=1, running_of_one=1))
        await desk.come("a", "b", "c")
        desk.tasks[1].cancel()
        await desk.end("a")
        assert "".join(desk.order) == "ac"
        await desk.leave()
        await desk.come("b")  # all turns are free again
        assert desk.order[-1] == "b"
        await desk.leave()

    asyncio.run(main())
