"""Leases: their holder and their duration; a store in memory, and a fake clock."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.bus import layout
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.leases.lease import LONGEST_LEADER, SETTLE, KnownStores, Leases, Use
from tests.doubles.memory_store import FirstStore, MemoryKeyValue, MemoryStore
from tests.doubles.ports import FakeClock
from tests.doubles.simulated_loop import run_simulated
from tests.fleet.make import there

Online = Callable[[KeyValue, float], Awaitable[bool]]
A, B, C = (NodeName.parse(f"{letter}.example.com") for letter in "abc")


class Site:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(now=self.clock.monotonic, born=1.0)
        self.first = FirstStore()

    def client(self) -> MemoryKeyValue:
        return MemoryKeyValue(self.store)

    def leases(
        self, holder: str, session: str = "1", *, stores: KnownStores | None = None
    ) -> Leases:
        return Leases(
            self.client(), self.clock, holder=holder, session=session, stores=stores or self.first
        )

    def lose_data(self) -> None:
        self.clock.advance(1)
        self.store = MemoryStore(now=self.clock.monotonic, born=self.clock.now().timestamp())


@pytest.fixture
def site() -> Site:
    return Site()


async def test_a_lease_has_a_single_holder_and_is_released(site: Site) -> None:
    one, other = site.leases(A), site.leases(B)
    held = there(await one.take("db", ttl=30))
    value = {"schema": 1, "holder": A, "session": "1", "use": "command"}
    assert json.loads(held.value) == value
    assert await other.take("db", ttl=30) is None
    assert await other.holder("db") == A
    assert await one.give_back(held)
    assert not await one.give_back(held), "not twice"
    assert await other.take("db", ttl=30) is not None


async def test_a_lease_lasts_from_before_its_write(site: Site) -> None:
    held = there(await site.leases(A).take("db", ttl=30))
    assert held.until == site.clock.monotonic() + 30
    site.clock.advance(20)
    renewed = there(await site.leases(A).renew(held))
    assert renewed.until == site.clock.monotonic() + 30
    assert renewed.revision > held.revision
    assert await site.leases(A).renew(held) is None, "fenced by its revision"


async def test_a_paused_holder_notices(site: Site) -> None:
    held = there(await site.leases(A).take("db", ttl=30))
    site.clock.advance(31)
    assert site.clock.monotonic() > held.until
    assert await site.leases(B).take("db", ttl=30) is not None
    assert await site.leases(A).renew(held) is None
    assert not await site.leases(A).give_back(held), "and takes nothing from the next"
    assert await site.leases(B).holder("db") == B


async def test_a_restarted_holder_takes_over_its_lease_and_fences_its_earlier_process() -> None:
    site = Site()
    held = there(await site.leases(A, "1").take("db", ttl=30, use=Use.LEADER))
    later = site.leases(A, "2")
    assert await later.take("db", ttl=30, use=Use.LEADER) is None
    assert await site.leases(B, "2").take("db", ttl=30, use=Use.LEADER, over=True) is None
    assert await later.take("db", ttl=30, use=Use.LEADER, over=True) is not None
    assert await site.leases(A, "1").renew(held) is None


@pytest.mark.parametrize("use", [Use.COMMAND, Use.LOCK])
async def test_the_lease_of_a_command_or_a_lock_cannot_be_taken_over(site: Site, use: Use) -> None:
    held = there(await site.leases(A, "1").take("db", ttl=30, use=use))
    later = site.leases(A, "2")
    assert await later.take("db", ttl=30, use=Use.LEADER, over=True) is None
    assert await site.leases(A, "1").renew(held) is not None
    assert await later.holder("db") == A
    assert await later.leader("db") is None, "no node leads under that name"


async def test_the_next_process_finds_a_lease_again(site: Site) -> None:
    held = there(await site.leases(A, "1").take("db", ttl=30))
    renewed = there(await site.leases(A, "1").renew(held))
    assert there(await site.leases(A, "2").find(held)).revision == renewed.revision
    site.store.kept.clear()
    assert await site.leases(A, "2").find(held) is None, "it has expired"
    assert await site.leases(A, "1").take("db", ttl=30) is not None
    assert await site.leases(A, "2").find(replace(held, value=b"another's")) is None


async def test_waiting_for_a_lease_ends_when_it_is_free(site: Site) -> None:
    held = there(await site.leases(A).take("db", ttl=30))
    waiting = asyncio.create_task(site.leases(B).wait("db", ttl=30, patience=1000))
    while not site.store.watchers:
        await asyncio.sleep(0)
    assert not waiting.done()
    await site.leases(A).give_back(held)
    assert await waiting is not None
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
        b'{"schema": 1, "holder": "\\u001b[2Ja", "session": "s", "use": "leader"}',
        b'{"schema": 1, "holder": "\\ud800", "session": "s", "use": "leader"}',
        b'{"schema": 1, "holder": {"a": 1}, "session": "s", "use": "leader"}',
    ],
)
async def test_an_invalid_lease_is_an_error(site: Site, value: bytes) -> None:
    await site.client().put(f"{layout.BASE}/leases/db", value)
    with pytest.raises(UnavailableError, match="not a lease"):
        await site.leases(A).holder("db")


async def nobody(_kv: KeyValue, _born: float) -> bool:
    return False


async def an_agent(_kv: KeyValue, _born: float) -> bool:
    return True


@pytest.mark.parametrize("online", [nobody, an_agent])
async def test_a_store_that_lost_its_data_gives_no_lease_before_lost_ones_have_expired(
    tmp_path: Path, online: Online
) -> None:
    site = Site()
    stores = KnownStores(path=tmp_path / "new" / "bus.json", online=online)
    held = there(await site.leases(A, stores=stores).take("db", ttl=30))
    if online is an_agent:
        stores.path.unlink()  # as on another node
    site.lose_data()
    other = site.leases(B, stores=stores)
    assert await other.wait("db", ttl=30, patience=0) is None
    obstacle = await other.obstacle("db", ttl=30)
    assert obstacle == "the bus is new, or lost its data: it gives leases in 1m"
    site.clock.advance(59)
    assert site.clock.monotonic() > held.until
    assert await other.take("db", ttl=30) is None, "a lock may be longer"
    site.clock.advance(1)
    assert await other.take("long", ttl=600) is None
    later = there(await other.take("db", ttl=30))
    assert later.revision == held.revision
    assert later.fence > held.fence


async def test_a_node_forgets_a_store_when_all_of_its_leases_have_expired(tmp_path: Path) -> None:
    stores = KnownStores(path=tmp_path / "bus.json", online=nobody)
    assert not stores.knew_another(1.0, now=2.0)
    for now, known in ((6.0, True), (5.0 + LONGEST_LEADER, True), (6.0 + LONGEST_LEADER, True)):
        assert stores.knew_another(5.0, now=now) is known
    assert not stores.knew_another(5.0, now=7.0)
    stores.path.write_text("[]")
    assert stores.knew_another(5.0, now=8.0), "it is unknown"


def test_the_first_store_gives_leases_after_a_pause_that_nobody_asks_for() -> None:
    async def work() -> None:
        site = Site()
        site.clock.monotonic = asyncio.get_running_loop().time  # type: ignore[method-assign]
        site.lose_data()
        begun = site.clock.monotonic()
        assert await site.leases(A).take("db", ttl=30) is None
        held = there(await site.leases(A).wait("db", ttl=30, patience=0))
        assert held.until == pytest.approx(begun + SETTLE + 30)
        assert await site.leases(B).wait("db", ttl=30, patience=0) is None

    run_simulated(work())


async def test_a_holder_writes_its_lease_again_to_a_store_that_lost_it(site: Site) -> None:
    held = there(await site.leases(A).take("db", ttl=30))
    site.lose_data()
    await site.leases(A).loss(held)
    assert await site.leases(A).find(held) == held, "it has not expired"
    renewed = there(await site.leases(A).renew(held))
    assert (renewed.until, renewed.fence) == (site.clock.monotonic() + 30, held.fence)
    assert await site.leases(B).take("db", ttl=30) is None
    site.clock.advance(SETTLE)
    assert await site.leases(B).take("db", ttl=30) is None
    assert await site.leases(A).renew(renewed) is not None
    await site.client().put(f"{layout.LEASES}db", renewed.value)  # the reply was lost
    found = there(await site.leases(A).find(held))
    assert await site.leases(A).give_back(found)
    assert there(await site.leases(B).take("db", ttl=30)).fence > held.fence


async def test_a_holder_takes_nothing_from_the_next_holder_of_another_store(site: Site) -> None:
    held = there(await site.leases(A).take("db", ttl=30))
    site.lose_data()
    assert await site.leases(B).take("db", ttl=30) is None
    site.clock.advance(SETTLE)
    other = there(await site.leases(B).take("db", ttl=30))
    assert other.revision == held.revision
    assert await site.leases(A).find(held) is None
    assert await site.leases(A).renew(held) is None
    assert await site.leases(A).give_back(held), "until it expires"
    assert await site.leases(B).holder("db") == B
    site.clock.advance(30)
    assert not await site.leases(A).give_back(held)
    assert await site.leases(A).renew(held) is None, "too late, also for a free lease"
    assert await site.leases(B).renew(other) is None
    assert await site.leases(B).take("db", ttl=30) is not None


async def test_a_wrong_clock_delays_leases_no_longer_than_their_time(tmp_path: Path) -> None:
    site = Site()
    site.store = MemoryStore(now=site.clock.monotonic, born=site.clock.now().timestamp() + 1e6)
    stores = KnownStores(path=tmp_path / "bus.json", online=an_agent)
    assert await site.leases(A, stores=stores).take("db", ttl=30) is None
    site.clock.advance(60)
    assert await site.leases(A, "2", stores=stores).take("db", ttl=30) is not None
