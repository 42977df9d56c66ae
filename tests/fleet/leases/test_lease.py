"""Leases: their holder and their duration; a store in memory, and a fake clock."""

import asyncio
import json
from dataclasses import replace

import pytest

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.bus import layout
from localpuppet.fleet.leases.lease import Leases, Use
from tests.doubles.memory_store import MemoryKeyValue, MemoryStore
from tests.doubles.ports import FakeClock

A, B, C = (NodeName.parse(f"{letter}.example.com") for letter in "abc")


class Site:
    """A store, a clock, and clients."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(now=self.clock.monotonic)

    def client(self) -> MemoryKeyValue:
        return MemoryKeyValue(self.store)

    def leases(self, holder: str, session: str = "1") -> Leases:
        return Leases(self.client(), self.clock, holder=holder, session=session)


async def test_a_lease_has_a_single_holder_and_is_released() -> None:
    site = Site()
    one, other = site.leases(A), site.leases(B)
    held = await one.take("db", ttl=30)
    assert held is not None
    assert await other.take("db", ttl=30) is None
    assert await other.holder("db") == A
    assert await one.give_back(held)
    assert not await one.give_back(held), "not twice"
    assert await other.take("db", ttl=30) is not None


async def test_a_lease_lasts_from_before_its_write() -> None:
    site = Site()
    held = await site.leases(A).take("db", ttl=30)
    assert held is not None
    assert held.until == site.clock.monotonic() + 30
    site.clock.advance(20)
    renewed = await site.leases(A).renew(held)
    assert renewed is not None
    assert renewed.until == site.clock.monotonic() + 30
    assert renewed.revision > held.revision
    assert await site.leases(A).renew(held) is None, "fenced by its revision"


async def test_a_paused_holder_notices() -> None:
    site = Site()
    held = await site.leases(A).take("db", ttl=30)
    assert held is not None
    site.clock.advance(31)
    assert site.clock.monotonic() > held.until
    assert await site.leases(B).take("db", ttl=30) is not None
    assert await site.leases(A).renew(held) is None
    assert not await site.leases(A).give_back(held), "and takes nothing from the next"
    assert await site.leases(B).holder("db") == B


async def test_a_restarted_holder_takes_over_its_lease_and_fences_its_earlier_process() -> None:
    site = Site()
    held = await site.leases(A, "1").take("db", ttl=30, use=Use.LEADER)
    assert held is not None
    later = site.leases(A, "2")
    assert await later.take("db", ttl=30, use=Use.LEADER) is None
    assert await site.leases(B, "2").take("db", ttl=30, use=Use.LEADER, over=True) is None
    assert await later.take("db", ttl=30, use=Use.LEADER, over=True) is not None
    assert await site.leases(A, "1").renew(held) is None


@pytest.mark.parametrize("use", [Use.COMMAND, Use.LOCK])
async def test_the_lease_of_a_command_or_a_lock_cannot_be_taken_over(use: Use) -> None:
    site = Site()
    held = await site.leases(A, "1").take("db", ttl=30, use=use)
    assert held is not None
    later = site.leases(A, "2")
    assert await later.take("db", ttl=30, use=Use.LEADER, over=True) is None
    assert await site.leases(A, "1").renew(held) is not None
    assert await later.holder("db") == A
    assert await later.leader("db") is None, "no node leads under that name"


async def test_the_next_process_finds_a_lease_again() -> None:
    site = Site()
    held = await site.leases(A, "1").take("db", ttl=30)
    assert held is not None
    renewed = await site.leases(A, "1").renew(held)
    assert renewed is not None
    found = await site.leases(A, "2").find(held)
    assert found is not None
    assert found.revision == renewed.revision
    site.store.kept.clear()
    assert await site.leases(A, "2").find(held) is None, "it has expired"
    assert await site.leases(A, "1").take("db", ttl=30) is not None
    assert await site.leases(A, "2").find(replace(held, value=b"another's")) is None


async def test_waiting_for_a_lease_ends_when_it_is_free() -> None:
    site = Site()
    held = await site.leases(A).take("db", ttl=30)
    assert held is not None
    waiting = asyncio.create_task(site.leases(B).wait("db", ttl=30, patience=1000))
    while not site.store.watchers:
        await asyncio.sleep(0)
    assert not waiting.done()
    await site.leases(A).give_back(held)
    found = await waiting
    assert found is not None
    assert await site.leases(C).wait("db", ttl=30, patience=0) is None


@pytest.mark.parametrize(
    "value",
    [
        b"rubbish",
        b"[" * 200_000,
        b'{"holder":' * 1000,
        b'{"holder": "a", "session": "s", "use": "command"}',
        b'{"schema": 2, "holder": "a", "session": "s", "use": "command"}',
        b'{"schema": 1, "holder": "a", "session": "s"}',
    ],
)
async def test_an_invalid_lease_is_an_error(value: bytes) -> None:
    site = Site()
    await site.client().put(f"{layout.BASE}/leases/db", value)
    with pytest.raises(UnavailableError, match="not a lease"):
        await site.leases(A).holder("db")


def test_a_lease_is_json() -> None:
    site = Site()

    async def value() -> bytes:
        held = await site.leases(A, "s").take("db", ttl=1)
        assert held is not None
        return held.value

    assert json.loads(asyncio.run(value())) == {
        "schema": 1,
        "holder": A,
        "session": "s",
        "use": "command",
    }


async def test_a_store_that_lost_its_data_gives_no_lease_before_lost_ones_have_expired() -> None:
    site = Site()
    held = await site.leases(A).take("db", ttl=30)
    assert held is not None
    site.store = MemoryStore(now=site.clock.monotonic, born=site.clock.now().timestamp())
    other = site.leases(B)
    assert await other.take("db", ttl=30) is None
    assert await other.obstacle("db", ttl=30) == (
        "the bus is new, or lost its data: it gives leases in 1m"
    )
    site.clock.advance(59)
    assert site.clock.monotonic() > held.until
    assert await other.take("db", ttl=30) is None, "a lock may be longer"
    site.clock.advance(1)
    assert await other.take("long", ttl=600) is None
    later = await other.take("db", ttl=30)
    assert later is not None
    assert later.revision == held.revision
    assert later.fence > held.fence


async def test_a_wrong_clock_delays_leases_no_longer_than_their_time() -> None:
    site = Site()
    born = site.clock.now().timestamp() + 1e6
    site.store = MemoryStore(now=site.clock.monotonic, born=born)
    assert await site.leases(A).take("db", ttl=30) is None
    site.clock.advance(60)
    assert await site.leases(A, "2").take("db", ttl=30) is not None
