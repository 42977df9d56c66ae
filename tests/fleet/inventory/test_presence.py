"""Presence: which nodes are online, over a store in memory and a fake clock."""

import asyncio
from collections.abc import Set as AbstractSet

import pytest

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.bus.key_value import Change
from localpuppet.fleet.inventory import presence
from localpuppet.fleet.inventory.presence import LOOK_AGAIN, listen
from tests.doubles.memory_store import MemoryKeyValue, MemoryStore
from tests.doubles.ports import FakeClock
from tests.doubles.simulated_loop import run_simulated

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
    """Notes what it receives besides changes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def take(self, change: Change) -> None:
        pass

    def full(self, reason: str) -> None:
        self.notes.append(reason)

    def miss(self, names: AbstractSet[str], revision: int) -> None:
        self.notes.append(f"listed {sorted(names)}")


def test_a_node_that_expires_from_a_full_bus_is_not_missed() -> None:
    store, board = MemoryStore(), NotingBoard()

    async def work() -> None:
        following = asyncio.create_task(listen(MemoryKeyValue(store), board))
        await asyncio.sleep(LOOK_AGAIN * 1.5)
        store.full = True
        await asyncio.sleep(LOOK_AGAIN)
        following.cancel()
        await asyncio.wait([following])

    run_simulated(work())
    assert board.notes == ["listed []", "the memory is full"]
