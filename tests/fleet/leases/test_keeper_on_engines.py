"""The keeper of leases: it sleeps while there are none, and renews what is taken meanwhile."""

import asyncio
from contextlib import aclosing
from pathlib import Path

from localpuppet.base.machine.clock import SystemClock
from localpuppet.fleet.bus.key_value import KeyWrite
from localpuppet.fleet.leases.book import LockUser
from localpuppet.fleet.leases.keeper import Keeper
from localpuppet.fleet.leases.lease import Leases
from tests.doubles.agent_ports import FakeBook
from tests.doubles.ports import FakeLog
from tests.rigs.engines import SqliteEngine


def lost(user: LockUser) -> None:
    raise AssertionError(f"the lock of {user} was lost")


async def test_a_lease_that_is_taken_while_the_keeper_sleeps_is_renewed(tmp_path: Path) -> None:
    async with SqliteEngine(tmp_path).open() as kv:
        clock = SystemClock()

        async def leases() -> Leases:
            return Leases(kv, clock, holder="a", session="1")

        keeper = Keeper(
            leases,
            clock,
            FakeLog(),
            book=FakeBook(),
            relies=lambda _: True,
            lost=lost,
        )
        stop = asyncio.Event()
        keeping = asyncio.create_task(keeper.keep(stop))
        await asyncio.sleep(0)  # it has looked, and sleeps
        writes = 0
        async with aclosing(kv.watch("/localpuppet/leases/")) as changes:
            await anext(changes)
            assert await keeper.leader("db", ttl=3, take=True) == "a"
            async for change in changes:
                writes += isinstance(change, KeyWrite)
                if writes == 3:  # taken, and renewed twice
                    break
        stop.set()
        await keeping
        assert await kv.get("/localpuppet/leases/db") is None
