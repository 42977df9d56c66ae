"""Listings and later changes: when the view is current, and what came after."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from localpuppet.fleet.bus.key_value import Change, KeyListing, KeyWrite
from tests.doubles.memory_store import MemoryKeyValue, MemoryStore
from tests.fleet.inventory.entries import key_of
from tests.fleet.inventory.test_following import DB, WEB, Node


async def test_a_change_right_behind_the_listing_leaves_it_listed(tmp_path: Path) -> None:
    node = Node(tmp_path)

    class Busy(MemoryKeyValue):
        async def watch(self, prefix: str, **how: Any) -> AsyncGenerator[Change, None]:
            async for change in super().watch(prefix, **how):
                yield change
                if isinstance(change, KeyListing):
                    for one in change.entries:
                        yield KeyWrite(entry=one)

    await node.says(WEB)
    node.kv = Busy(node.store)
    async with node.following():
        await node.until(lambda: node.view.current_until() is not None)
    assert node.nodes() == [WEB.name]


async def test_a_new_bus_restarts_the_revisions_of_the_view(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for _ in range(5):
        await node.says(DB)
    await node.says(WEB)
    await node.follower().list_once()
    kept = await node.kv.get(key_of(WEB.name))
    assert (node.view.revision, node.view.since(5)) == (6, {WEB.name})
    node.store = MemoryStore(now=node.clock.monotonic)
    node.kv = MemoryKeyValue(node.store)
    assert kept is not None
    await node.kv.put(key_of(WEB.name), kept.value)
    await node.follower().list_once()
    assert node.view.revision == 1
    assert node.view.since(1) == set(), "the listing had nothing new"
    await node.says(DB, age=-1)
    await node.follower().list_once()
    assert node.view.since(1) == {DB.name}
