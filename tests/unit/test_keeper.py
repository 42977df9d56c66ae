"""Leases that are kept: renewed, given back, fenced; a store in memory, a clock of our own."""

import asyncio

import pytest

from localpuppet.bus import Leases
from localpuppet.errors import BusyError, InvalidInputError, UnavailableError
from localpuppet.keeper import GIVE_UP_AT, LOCK_TTL, RENEW_AT, Keeper
from localpuppet.key_value import KeyValue
from tests.fakes import FakeClock, FakeLog
from tests.fakes_key_value import MemoryKeyValue, MemoryStore

RUN = "20261120T140000.000000Z-abcd"


class Rig:
    """A node's keeper, and another node."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(now=self.clock.monotonic)
        self.log = FakeLog()
        self.lost: list[str | None] = []
        self.connected = True
        self.keeper = Keeper(
            self.connection,
            self.clock,
            self.log,
            holder="a.example.com",
            session="1",
            lost=self.lost.append,
        )
        self.other = Leases(
            MemoryKeyValue(self.store), self.clock, holder="b.example.com", session="1"
        )

    async def connection(self) -> KeyValue:
        if not self.connected:
            raise UnavailableError("there is no connection", where="bus")
        return MemoryKeyValue(self.store)

    async def rob(self, name: str) -> None:
        """Let somebody else have a lease, as after a pause of ours."""
        self.store.kept.pop(f"/localpuppet/leases/{name}")
        assert await self.other.take(name, ttl=1000) is not None


async def test_a_lock_is_renewed_in_time_and_not_before() -> None:
    rig = Rig()
    revision = await rig.keeper.lock("db", wait=0, run=RUN)
    rig.clock.advance(LOCK_TTL * RENEW_AT - 1)
    await rig.keeper.step()
    assert rig.store.revision == revision
    for _ in range(10):
        rig.clock.advance(LOCK_TTL * RENEW_AT + 1)
        await rig.keeper.step()
        assert await rig.other.take("db", ttl=1) is None
    assert rig.keeper.runs() == {RUN}
    assert await rig.keeper.unlock("db")
    assert await rig.other.take("db", ttl=1) is not None


async def test_a_lock_is_had_once() -> None:
    rig = Rig()
    await rig.keeper.lock("db", wait=0, run=RUN)
    with pytest.raises(InvalidInputError, match="already"):
        await rig.keeper.lock("db", wait=0, run=RUN)
    await rig.other.take("theirs", ttl=1000)
    with pytest.raises(BusyError, match=r"b\.example\.com has it"):
        await rig.keeper.lock("theirs", wait=0, run=RUN)


async def test_a_lock_that_somebody_else_has_ends_its_run() -> None:
    rig = Rig()
    await rig.keeper.lock("db", wait=0, run=RUN)
    await rig.rob("db")
    rig.clock.advance(LOCK_TTL * RENEW_AT)
    await rig.keeper.step()
    assert rig.lost == [RUN]
    assert "lost the lease db: somebody else has it" in rig.log.text
    assert rig.keeper.runs() == set()
    assert await rig.other.holder("db") == "b.example.com"
    await rig.keeper.step()
    assert rig.lost == [RUN], "once"


async def test_in_an_outage_a_lock_is_given_up_before_another_could_have_it() -> None:
    rig = Rig()
    await rig.keeper.lock("db", wait=0, run=RUN)
    rig.connected = False
    rig.clock.advance(LOCK_TTL * GIVE_UP_AT - 1)
    await rig.keeper.step()
    assert rig.lost == []
    rig.clock.advance(1)
    await rig.keeper.step()
    assert rig.lost == [RUN]
    assert rig.store.get("/localpuppet/leases/db") is not None, "theirs only later"


async def test_an_outage_that_ends_in_time_costs_nothing() -> None:
    rig = Rig()
    await rig.keeper.lock("db", wait=0, run=RUN)
    rig.store.away = True
    rig.clock.advance(LOCK_TTL * 0.8)
    await rig.keeper.step()
    rig.store.away = False
    await rig.keeper.step()
    rig.clock.advance(LOCK_TTL * 0.8)
    assert await rig.other.take("db", ttl=1) is None
    assert rig.lost == []


async def test_what_a_run_left_behind_is_given_back() -> None:
    rig = Rig()
    await rig.keeper.lock("one", wait=0, run=RUN)
    await rig.keeper.lock("two", wait=0, run="20261120T150000.000000Z-abcd")
    await rig.keeper.over(RUN)
    assert await rig.other.take("one", ttl=1) is not None
    assert await rig.other.take("two", ttl=1) is None
    rig.connected = False
    await rig.keeper.over("20261120T150000.000000Z-abcd")
    assert "expires by itself" in rig.log.text


async def test_unlock_says_whether_it_was_ours_to_the_end() -> None:
    rig = Rig()
    await rig.keeper.lock("db", wait=0, run=RUN)
    await rig.rob("db")
    assert not await rig.keeper.unlock("db")
    assert await rig.keeper.unlock("never")
    assert await rig.other.holder("db") == "b.example.com"


async def test_a_leader_leads_only_while_its_lease_is_good() -> None:
    rig = Rig()
    assert await rig.keeper.leader("db", ttl=30, take=False) is None
    assert await rig.keeper.leader("db", ttl=30, take=True) == "a.example.com"
    rig.connected = False
    assert await rig.keeper.leader("db", ttl=30, take=True) == "a.example.com", "it knows"
    rig.clock.advance(30 * GIVE_UP_AT)
    with pytest.raises(UnavailableError):
        await rig.keeper.leader("db", ttl=30, take=True)
    await rig.keeper.step()
    assert rig.lost == [], "nobody's run relied on it"
    rig.connected = True
    await rig.rob("db")
    assert await rig.keeper.leader("db", ttl=30, take=True) == "b.example.com"


async def test_at_the_end_everything_is_given_back() -> None:
    rig = Rig()
    await rig.keeper.lock("one", wait=0, run=None)
    await rig.keeper.leader("two", ttl=30, take=True)
    stop = asyncio.Event()
    stop.set()
    await rig.keeper.keep(stop)
    for name in ("one", "two"):
        assert await rig.other.take(name, ttl=1) is not None
