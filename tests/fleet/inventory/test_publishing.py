"""What a node publishes: only changes; and which nodes are online."""

import asyncio
from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.bus.key_value import Change, KeyValue
from localpuppet.fleet.inventory import presence
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.entry_publisher import (
    LOOK,
    SPREAD,
    Publisher,
    PublisherIdentity,
    publish,
)
from localpuppet.fleet.inventory.outbox import STEP, Outbox
from localpuppet.fleet.inventory.presence import LOOK_AGAIN, listen
from localpuppet.fleet.trust.signing import MessageKind
from tests.doubles.identities import person, verifier
from tests.doubles.memory_store import MemoryKeyValue, MemoryStore
from tests.doubles.ports import FakeClock, FakeLog
from tests.fleet.inventory.entries import entry, key_of, signed
from tests.fleet.make import there

WEB = person("web01.example.com")
NOW, REFRESH = 1_800_000_000.0, 3600.0


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    return Outbox(tmp_path / "state")


@pytest.fixture
def voice(tmp_path: Path) -> PublisherIdentity:
    return PublisherIdentity(
        node=NodeName(WEB.name), signer=WEB.signer, verifier=verifier(tmp_path, WEB), baggage=()
    )


def _entry(at: float, **more: object) -> InventoryEntry:
    return entry(str(WEB.name), at=at, **more)


def _offer(outbox: Outbox, at: float, **more: object) -> bool:
    return outbox.offer(_entry(at, **more), refresh=REFRESH)


def test_only_news_is_written_down(outbox: Outbox) -> None:
    assert (outbox.payload(), outbox.stamp()) == (None, 0)
    assert _offer(outbox, NOW)
    stamp = outbox.stamp()
    assert not _offer(outbox, NOW + REFRESH - 1)
    assert (outbox.entry(), outbox.stamp()) == (_entry(NOW), stamp)
    assert _offer(outbox, NOW + 1, roles=("web",))
    assert _offer(outbox, NOW + 1 + REFRESH, roles=("web",))


def test_entries_do_not_go_back_with_the_clock_unless_it_was_far_ahead(outbox: Outbox) -> None:
    assert _offer(outbox, NOW)
    assert _offer(outbox, NOW - 60, roles=("web",))
    found = there(outbox.entry())
    assert (found.at, found.roles) == (NOW + STEP, ("web",))
    assert _offer(outbox, NOW + 1e6)
    assert _offer(outbox, NOW)
    assert outbox.entry() == _entry(NOW)


def test_an_entry_that_is_too_large_keeps_the_earlier_entry(outbox: Outbox) -> None:
    assert _offer(outbox, NOW)
    with pytest.raises(InvalidInputError):
        _offer(outbox, NOW + 1, facts={"blob": "x" * 5_000_000})
    assert outbox.entry() == _entry(NOW)


def test_a_damaged_outbox_is_replaced(outbox: Outbox) -> None:
    assert _offer(outbox, NOW)
    outbox.path.write_bytes(b"rubbish")
    assert outbox.entry() is None
    assert _offer(outbox, NOW)


def test_an_entry_counts_as_published_until_it_changes(outbox: Outbox) -> None:
    assert outbox.is_published()  # there is nothing to publish
    _offer(outbox, NOW)
    assert not outbox.is_published()
    outbox.note_published(outbox.payload() or b"")
    assert outbox.is_published()
    _offer(outbox, NOW + 1, roles=("web",))
    assert not outbox.is_published()


async def test_to_publish_is_to_compare(voice: PublisherIdentity) -> None:
    kv = MemoryKeyValue(MemoryStore())
    payload = _entry(NOW).to_payload()
    assert await publish(kv, payload, voice)
    assert not await publish(kv, payload, voice)
    found = there(await kv.get(key_of(WEB.name)))
    assert voice.verifier.verify(found.value, MessageKind.INVENTORY).payload == payload


@pytest.mark.parametrize("by", ["stranger", "older"])
async def test_another_entry_of_the_node_is_replaced(voice: PublisherIdentity, by: str) -> None:
    kv = MemoryKeyValue(MemoryStore())
    other = person(str(WEB.name)) if by == "stranger" else WEB
    await kv.put(key_of(WEB.name), signed(other, _entry(NOW - (by == "older"))))
    assert await publish(kv, _entry(NOW).to_payload(), voice)


@pytest.mark.simulated
async def test_an_agent_publishes_after_an_outage(outbox: Outbox, voice: PublisherIdentity) -> None:
    store, log, time = MemoryStore(away=True), FakeLog(), asyncio.get_running_loop().time
    kv = MemoryKeyValue(store)
    changed, leave = asyncio.Event(), asyncio.Event()

    async def connected() -> KeyValue:
        if store.away:
            raise UnavailableError("is unreachable", where="bus")
        return kv

    looks: list[bool] = []

    async def then(told: bool) -> None:
        looks.append(told)

    publisher = Publisher(outbox, voice, store=connected, log=log, then=then)
    task = asyncio.create_task(publisher.run(changed, leave))
    _offer(outbox, NOW)
    while not log.lines:
        await asyncio.sleep(0.01)
    store.away = False
    back = time()
    while store.revision < 1:
        await asyncio.sleep(0.01)
    assert time() <= back + LOOK  # without a signal
    _offer(outbox, NOW + 1, roles=("web",))
    changed.set()
    news = time()
    while store.revision < 2:
        await asyncio.sleep(0.01)
    leave.set()
    await task
    assert time() < news + LOOK / 10  # it has not waited for its next look
    assert [level for level, _ in log.lines] == ["warning", "info", "info"]
    assert (looks[0], looks[-1]) == (False, True)  # whether the bus has the entry


@pytest.mark.simulated
async def test_an_agent_publishes_again_when_it_has_connected_to_a_bus_that_lost_its_data(
    outbox: Outbox, voice: PublisherIdentity
) -> None:
    buses, time = [MemoryKeyValue(MemoryStore())], asyncio.get_running_loop().time
    _offer(outbox, NOW)

    async def connected() -> KeyValue:
        return buses[-1]

    async def then(_: bool) -> None:
        pass

    changed, leave = asyncio.Event(), asyncio.Event()
    publisher = Publisher(outbox, voice, store=connected, log=FakeLog(), then=then)
    task = asyncio.create_task(publisher.run(changed, leave))
    while buses[0].store.revision < 1:
        await asyncio.sleep(0.01)
    buses.append(MemoryKeyValue(MemoryStore()))
    lost = time()
    while buses[1].store.revision < 1:
        await asyncio.sleep(0.01)
    assert time() <= lost + SPREAD + 2 * LOOK, "and not an hour later"
    leave.set()
    await task


A, B = (NodeName.parse(f"{letter}.example.com") for letter in "ab")


async def test_a_presence_expires_and_an_outage_is_an_error() -> None:
    clock = FakeClock()
    store = MemoryStore(now=clock.monotonic)
    kv = MemoryKeyValue(store)
    await presence.announce(kv, A, b"here")
    await presence.announce(kv, B, b"leaving", ttl=presence.FAREWELL_TTL)
    assert await presence.nodes(kv) == {A: b"here", B: b"leaving"}
    clock.advance(presence.FAREWELL_TTL)
    assert await presence.nodes(kv) == {A: b"here"}
    clock.advance(presence.PRESENCE_TTL)
    assert await presence.nodes(kv) == {}
    store.away = True
    with pytest.raises(UnavailableError):
        await presence.nodes(kv)


class NotingBoard:
    def __init__(self) -> None:
        self.notes: list[str] = []

    def take(self, change: Change) -> None:
        pass

    def full(self, reason: str) -> None:
        self.notes.append(reason)

    def miss(self, names: AbstractSet[str], revision: int) -> None:
        self.notes.append(f"listed {sorted(names)}")


@pytest.mark.simulated
async def test_a_node_that_expires_from_a_full_bus_is_not_missed() -> None:
    store, board = MemoryStore(), NotingBoard()
    following = asyncio.create_task(listen(MemoryKeyValue(store), board))
    await asyncio.sleep(LOOK_AGAIN * 1.5)
    store.full = True
    await asyncio.sleep(LOOK_AGAIN)
    following.cancel()
    await asyncio.wait([following])
    assert board.notes == ["listed []", "the memory is full"]
