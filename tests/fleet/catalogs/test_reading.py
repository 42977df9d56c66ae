"""Catalogs of other nodes: from the bus once, or from the node, and never the wrong bytes."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import StateError, UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.files import write_json
from localpuppet.fleet.bus.layout import catalogs_of
from localpuppet.fleet.inventory.chunks import chunk_key, chunk_value
from localpuppet.fleet.kept_catalogs import (
    FRESH,
    CatalogHeader,
    CatalogKeeper,
    CatalogReader,
    NodeCatalog,
    ask_catalog,
)
from localpuppet.fleet.requests.request_client import REPLY_CHUNK
from tests.doubles.answering_nodes import AnsweringNodes
from tests.doubles.memory_store import MemoryKeyValue, MemoryStore
from tests.fleet.inventory.entries import entry
from tests.fleet.make import RUN, a_catalog, entry_with, random_text

ME, WEB = NodeName("me.example.com"), NodeName("web01.example.com")
SMALL = a_catalog(WEB, motd={"content": "hello"})
# More than two replies, packed.
LARGE = a_catalog(WEB, large={"content": random_text(3 * REPLY_CHUNK, 1)})


def keep(directory: Path, catalog: NodeCatalog) -> CatalogKeeper:
    keeper = CatalogKeeper(directory)
    keeper.outbox.write(catalog.packed)
    write_json(directory / "catalogs" / "last.json", catalog.header.to_dict())
    return keeper


class Site:
    def __init__(self, directory: Path) -> None:
        self.store = MemoryStore()
        self.at = 0.0
        self.directory = directory / "reader"
        self.nodes = AnsweringNodes("catalog", lambda _: CatalogKeeper(directory / "node"))
        self.reader = CatalogReader(
            ME,
            CatalogKeeper(directory / "reader"),
            store=self.connected,
            client=lambda _: self.nodes,
            monotonic=lambda: self.at,
        )

    async def connected(self) -> MemoryKeyValue:
        return MemoryKeyValue(self.store)

    async def publish(self, catalog: NodeCatalog) -> None:
        key = chunk_key(catalogs_of(catalog.node), "a", 0)
        kv = MemoryKeyValue(self.store)
        await kv.put(key, chunk_value(catalog.header.digest, catalog.packed))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_a_published_catalog_is_fetched_once(site: Site) -> None:
    await site.publish(SMALL)
    found = await site.reader.read(entry_with(SMALL))
    assert found.catalog == SMALL.catalog
    assert (found.header.release, found.header.digest) == ("app/tags/r1", SMALL.header.digest)
    site.store.away = True
    assert (await site.reader.read(entry_with(SMALL))).packed == SMALL.packed
    with pytest.raises(UnavailableError):
        await site.reader.read(entry_with(LARGE))


async def test_a_catalog_that_the_entry_does_not_name_is_refused(site: Site) -> None:
    await site.publish(SMALL)
    with pytest.raises(UnavailableError, match=f"{WEB}: the bus does not hold"):
        await site.reader.read(entry_with(LARGE))
    other = NodeCatalog(node=ME, header=SMALL.header, packed=SMALL.packed)
    await site.publish(other)
    entry_of_me = entry_with(other)
    with pytest.raises(UnavailableError, match="names another node"):
        await site.reader.read(entry_of_me)


async def test_memory_holds_the_catalogs_that_were_read_last(site: Site) -> None:
    catalogs = [a_catalog(NodeName(f"n{number}.example.com"), motd={}) for number in range(3)]
    site.reader.most = 2 * len(catalogs[0].packed)
    for one in catalogs:
        await site.publish(one)
        await site.reader.read(entry_with(one))
    site.store.away = True
    assert (await site.reader.read(entry_with(catalogs[2]))).packed == catalogs[2].packed
    with pytest.raises(UnavailableError):
        await site.reader.read(entry_with(catalogs[0]))


async def test_a_node_without_a_published_catalog_is_asked_again_later(site: Site) -> None:
    keeper = keep(site.directory / "other", LARGE)
    site.nodes.keeper = lambda _: keeper
    assert (await site.reader.read_all([entry(WEB, at=1)]))[0].header == LARGE.header
    count = len(site.nodes.asked)
    assert [args.chunk for args in site.nodes.asked] == [*range(count)]
    assert count > 2
    await site.reader.read(entry(WEB, at=1))
    assert len(site.nodes.asked) == count
    site.at += FRESH + 1
    await site.reader.read(entry(WEB, at=1))
    assert len(site.nodes.asked) == 2 * count


async def test_this_node_reads_its_own_disk(site: Site) -> None:
    with pytest.raises(StateError, match="keeps no catalog yet"):
        await site.reader.read(entry(ME, at=1))
    site.reader.keeper = keep(site.directory, a_catalog(ME))
    assert (await site.reader.read(entry(ME, at=1))).catalog == a_catalog(ME).catalog
    unknown = CatalogHeader(run=RUN, at=1, release="r", environment="e", problem="is too large")
    write_json(site.directory / "catalogs/last.json", unknown.to_dict())
    with pytest.raises(StateError, match="is too large"):
        await site.reader.read(entry(ME, at=1))
    assert site.nodes.asked == []


async def test_a_run_between_two_replies_begins_the_request_again(site: Site) -> None:
    keeper = keep(site.directory / "other", LARGE)
    site.nodes.keeper = lambda _: keeper

    def replace(told: dict[str, Json]) -> Mapping[str, Any]:
        if len(site.nodes.asked) == 1:
            keep(site.directory / "other", SMALL)
        return told

    site.nodes.change = replace
    assert (await ask_catalog(site.nodes, WEB, patience=1)).catalog == SMALL.catalog
    assert [args.chunk for args in site.nodes.asked] == [0, 1, 0]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda told: {**told, "data": "A" * len(told["data"])}, "without the digest"),
        (lambda told: {**told, "data": "?"}, "unknown answer"),
        (lambda told: {**told, "data": ""}, "at most"),
        (lambda told: {"data": told["data"]}, "unknown answer"),
        (lambda told: {**told, "catalog": {**told["catalog"], "size": 10**9}}, "at most"),
        (lambda told: {**told, "catalog": {**told["catalog"], "at": 1e300}}, "unknown answer"),
        (lambda told: {**told, "catalog": {**told["catalog"], "at": -1e20}}, "unknown answer"),
        (lambda told: "denied by policy", "denied by policy"),
    ],
)
async def test_a_lie_is_no_catalog(site: Site, change: Callable[[Any], Any], problem: str) -> None:
    keeper = keep(site.directory / "other", SMALL)
    site.nodes.keeper = lambda _: keeper
    site.nodes.change = change
    with pytest.raises(UnavailableError, match=problem):
        await ask_catalog(site.nodes, WEB, patience=1)
    assert len(site.nodes.asked) < 10
