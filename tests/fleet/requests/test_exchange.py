"""Requests and replies on the bus, over a store in memory and a fake clock."""

import asyncio
from contextlib import suppress

import pytest

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.bus import layout
from localpuppet.fleet.requests import request_client
from tests.doubles.memory_store import MemoryKeyValue, MemoryStore
from tests.doubles.ports import FakeClock

B = NodeName.parse("b.example.com")
UUID = "3f2504e0-4f89-41d3-9a0c-0305e82c3301"


async def test_a_request_and_its_reply() -> None:
    store = MemoryStore(now=FakeClock().monotonic)
    kv = MemoryKeyValue(store)
    async with request_client.Replies(kv, "alice", B) as replies:
        asked = replies.ask(
            b"question", at=layout.requests_of("alice", B) + UUID, node=B, request=UUID, ttl=60
        )
        waiting = asyncio.create_task(anext(asked))
        while not (there := (await kv.list(layout.requests_for(B))).entries):
            await asyncio.sleep(0)
        assert (there[0].key, there[0].value) == (
            f"{layout.BASE}/requests/{B}/alice/{UUID}",
            b"question",
        )
        await request_client.reply(kv, b"another", caller="alice", node=B, request=UUID[::-1])
        await request_client.reply(kv, b"answer", caller="alice", node=B, request=UUID)
        assert await waiting == b"answer"
        await asked.aclose()
    assert not store.watchers


async def test_requests_share_a_watch_and_each_gets_its_own_replies() -> None:
    store = MemoryStore(now=FakeClock().monotonic)
    kv = MemoryKeyValue(store)
    nodes = [NodeName.parse(f"n{number}.example.com") for number in range(3)]
    async with request_client.Replies(kv, "alice") as replies:
        asked = [
            replies.ask(
                b"?", at=layout.requests_of("alice", node) + UUID, node=node, request=UUID, ttl=60
            )
            for node in nodes
        ]
        waiting = [asyncio.create_task(anext(one)) for one in asked]
        while len((await kv.list(f"{layout.BASE}/requests/")).entries) < len(nodes):
            await asyncio.sleep(0)
        assert len(store.watchers) == 1
        for node in reversed(nodes):
            await request_client.reply(kv, node.encode(), caller="alice", node=node, request=UUID)
            await request_client.reply(kv, b"of bob's", caller="bob", node=node, request=UUID)
        assert [await one for one in waiting] == [node.encode() for node in nodes]
        for one in asked:
            await one.aclose()
    assert not store.watchers


async def test_an_outage_ends_waiting_requests_and_the_next_request_watches_again() -> None:
    store = MemoryStore(now=FakeClock().monotonic)
    kv = MemoryKeyValue(store)
    async with request_client.Replies(kv, "alice") as replies:
        waiting = asyncio.create_task(
            anext(
                replies.ask(
                    b"1", at=layout.requests_of("alice", B) + UUID, node=B, request=UUID, ttl=60
                )
            )
        )
        while not store.watchers:
            await asyncio.sleep(0)
        store.away = True
        store.wake()
        with pytest.raises(UnavailableError):
            await waiting
        with pytest.raises(UnavailableError):
            await anext(
                replies.ask(
                    b"2", at=layout.requests_of("alice", B) + UUID, node=B, request=UUID, ttl=60
                )
            )
        store.away = False
        waiting = asyncio.create_task(
            anext(
                replies.ask(
                    b"3", at=layout.requests_of("alice", B) + UUID, node=B, request=UUID, ttl=60
                )
            )
        )
        while not store.kept:
            await asyncio.sleep(0)
        await request_client.reply(kv, b"answer", caller="alice", node=B, request=UUID)
        assert await waiting == b"answer"


async def test_endless_replies_are_not_kept_in_memory() -> None:
    kv = MemoryKeyValue(MemoryStore(now=FakeClock().monotonic))
    async with request_client.Replies(kv, "alice") as replies:
        asked = replies.ask(
            b"?", at=layout.requests_of("alice", B) + UUID, node=B, request=UUID, ttl=60
        )
        waiting = asyncio.create_task(anext(asked))
        while not (await kv.list(layout.requests_for(B))).entries:
            await asyncio.sleep(0)
        for number in range(10 * request_client.MOST_UNREAD):
            await request_client.reply(kv, b"%d" % number, caller="alice", node=B, request=UUID)
        assert await waiting == b"0"
        read = 1
        with suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                async for _ in asked:
                    read += 1
        assert read <= request_client.MOST_UNREAD + 2
