"""Requests and replies on the bus, over a store in memory and a clock of our own."""

import asyncio

from localpuppet.bus import layout
from localpuppet.formats.names import NodeName
from localpuppet.requests import exchange
from tests.doubles.memory_store import MemoryKeyValue, MemoryStore
from tests.doubles.ports import FakeClock

B = NodeName.parse("b.example.com")
UUID = "3f2504e0-4f89-41d3-9a0c-0305e82c3301"


async def test_a_request_and_its_reply() -> None:
    store = MemoryStore(now=FakeClock().monotonic)
    kv = MemoryKeyValue(store)
    asked = exchange.ask(kv, b"question", caller="alice", node=B, request=UUID, ttl=60)
    waiting = asyncio.create_task(anext(asked))
    while not (there := (await kv.list(layout.requests_for(B))).entries):
        await asyncio.sleep(0)
    assert (there[0].key, there[0].value) == (
        f"{layout.BASE}/requests/{B}/alice/{UUID}",
        b"question",
    )
    await exchange.reply(kv, b"another", caller="alice", node=B, request=UUID[::-1])
    await exchange.reply(kv, b"answer", caller="alice", node=B, request=UUID)
    assert await waiting == b"answer"
    await asked.aclose()
    assert not store.watchers
