"""The keeper of leases: it sleeps while there are none, and renews what is taken meanwhile."""

import asyncio
from pathlib import Path

from localpuppet.base.errors import UnavailableError
from localpuppet.base.machine.process_table import SystemClock
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.bus.layout import LEASES
from localpuppet.fleet.leases.keeper import Keeper, LockUser
from localpuppet.fleet.leases.lease import HeldLease, Leases
from tests.doubles.agent_ports import FakeBook
from tests.doubles.memory_store import FirstStore
from tests.doubles.ports import FakeLog
from tests.rigs.engines import Engine, SqliteEngine, age
from tests.rigs.following import Follower
from tests.rigs.waiting import PATIENCE


def lost(user: LockUser) -> None:
    raise AssertionError(f"the lock of {user} was lost")


async def test_a_lease_that_is_taken_while_the_keeper_sleeps_is_renewed(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path)
    age(engine.path)
    async with engine.open() as kv:
        clock = SystemClock()

        async def leases() -> Leases:
            return Leases(kv, clock, holder="a", session="1", stores=FirstStore())

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


def _leases(kv: KeyValue, holder: str) -> Leases:
    return Leases(kv, SystemClock(), holder=holder, session="1", stores=FirstStore())


async def test_a_holder_keeps_its_lease_when_the_bus_loses_it(lossy: Engine) -> None:
    """Neither holder nor the next one knew another store, as on the first day of a bus."""
    async with lossy.open() as kv:
        held = await _leases(kv, "a").wait("db", ttl=30, patience=0)
        assert held is not None
        begun = SystemClock().monotonic()
        lossy.lose_data()

        async def reclaimed() -> HeldLease | None:
            while True:
                try:
                    return await _leases(kv, "a").renew(held)
                except UnavailableError:
                    await asyncio.sleep(0.05)

        async with lossy.open() as later, asyncio.timeout(PATIENCE):
            other = _leases(later, "b")
            next_one = asyncio.create_task(other.wait("db", ttl=30, patience=0))
            await _leases(kv, "a").loss(held)
            renewed = await reclaimed()
            assert await next_one is None
            if renewed is None:  # this machine was busy for longer than the lease
                assert SystemClock().monotonic() > begun + 20
                return
            assert await other.holder("db") == "a"
            assert await _leases(kv, "a").give_back(renewed)
            after = await other.take("db", ttl=30)
            assert after is not None
            assert after.fence > held.fence
