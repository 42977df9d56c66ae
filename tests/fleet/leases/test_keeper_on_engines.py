"""The keeper of leases: it sleeps while there are none, and renews what is taken meanwhile."""

import asyncio
from pathlib import Path

from localpuppet.base.machine.clock import SystemClock
from localpuppet.fleet.bus.layout import LEASES
from localpuppet.fleet.leases.book import LockUser
from localpuppet.fleet.leases.keeper import Keeper
from localpuppet.fleet.leases.lease import Leases
from tests.doubles.agent_ports import FakeBook
from tests.doubles.ports import FakeLog
from tests.rigs.engines import SqliteEngine, age
from tests.rigs.following import Follower


def lost(user: LockUser) -> None:
    raise AssertionError(f"the lock of {user} was lost")


async def test_a_lease_that_is_taken_while_the_keeper_sleeps_is_renewed(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path)
    age(engine.path)
    async with engine.open() as kv:
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
        follower = Follower(kv, LEASES)
        await follower.listed()
        for ttl in (3, 15, 75):  # a busy keeper may lose a short lease
            writes = len(follower.puts)
            while await keeper.leader("db", ttl=ttl, take=True) != "a":
                await asyncio.sleep(0.05)  # until it has given up the one before
            while len(follower.puts) < writes + 3 and await kv.get(f"{LEASES}db"):
                await asyncio.sleep(0.05)
            if len(follower.puts) >= writes + 3:  # taken, and renewed twice
                break
        else:
            raise AssertionError("no lease was renewed twice")
        await follower.stop()
        stop.set()
        await keeping
        assert await kv.get(f"{LEASES}db") is None
