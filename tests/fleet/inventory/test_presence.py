"""Presence: which nodes are online, over a store in memory and a fake clock."""

import pytest

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.inventory import presence
from tests.doubles.memory_store import MemoryKeyValue, MemoryStore
from tests.doubles.ports import FakeClock

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
