"""Fakes of the ports of an agent."""

import asyncio

from localpuppet.fleet.agent.agent import RequestedRunResult, RunCompletion, RunOrder
from localpuppet.fleet.leases.keeper import LeaseRecord


class FakeBook:
    """Lease records in memory."""

    def __init__(self) -> None:
        self.noted: dict[str, LeaseRecord] = {}

    def note(self, noted: LeaseRecord) -> None:
        self.noted[noted.name] = noted

    def strike(self, name: str) -> None:
        self.noted.pop(name, None)

    def entries(self) -> list[LeaseRecord]:
        return list(self.noted.values())


class FakeRunner:
    """Runs that the agent starts and the test ends."""

    def __init__(self) -> None:
        self.orders: asyncio.Queue[RunOrder] = asyncio.Queue()
        self.ends: asyncio.Queue[RunCompletion | Exception] = asyncio.Queue()
        self.on = False

    async def run(self, order: RunOrder) -> RunCompletion:
        assert not self.on, "never two at once"
        self.on = True
        self.orders.put_nowait(order)
        try:
            end = await self.ends.get()
            if isinstance(end, Exception):
                raise end
            return end
        finally:
            self.on = False

    def end(self) -> None:
        if self.on:
            end = RunCompletion(
                result=RequestedRunResult.OVER, outcome="interrupted", reason="it was asked to end"
            )
            self.ends.put_nowait(end)
