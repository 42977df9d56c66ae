"""A NATS cluster of three: the stream has a copy on each, and outlives any one of them."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from localpuppet.base.errors import UnavailableError
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.bus.nats_bus import open_nats
from tests.rigs.following import Follower, follow
from tests.rigs.reaching import servers_at
from tests.rigs.servers import NEW_NATS, OLD_NATS, NatsServer, nats_cluster
from tests.rigs.waiting import PATIENCE

TIMEOUT = 5.0
_Result = TypeVar("_Result")


@pytest.fixture(params=[OLD_NATS, NEW_NATS], ids=["nats-debian", "nats"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[NatsServer]]:
    servers = nats_cluster(tmp_path, 3, request.param)
    for server in servers:
        server.start(wait=False)
    try:
        for server in servers:
            server.wait_healthy()
        yield servers
    finally:
        for server in servers:
            server.stop()


async def persist(call: Callable[[], Awaitable[_Result]]) -> _Result:
    """Call until it works: a cluster takes seconds to choose a leader."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return await call()
        except UnavailableError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)


async def connect(servers: list[NatsServer]) -> KeyValue:
    urls = [server.url for server in servers]
    return await persist(lambda: open_nats(servers_at(*urls, replicas=3), timeout=TIMEOUT))


async def put(store: KeyValue, key: str, value: bytes) -> int:
    return await persist(lambda: store.put(key, value, ttl=3600.0))


async def listed(store: KeyValue, prefix: str, keys: int) -> set[str]:
    """Return the keys once the store has that number: a server that has just restarted lags."""
    deadline = time.monotonic() + PATIENCE
    while True:
        entries = (await persist(lambda: store.list(prefix))).entries
        if len(entries) == keys or time.monotonic() > deadline:
            return {entry.key for entry in entries}
        await asyncio.sleep(0.2)


async def test_any_server_may_die(cluster: list[NatsServer]) -> None:
    store = await connect(cluster)
    written = set()
    for dead in cluster:
        key = f"/a/before-{dead.directory.name}"
        await put(store, key, b"1")
        written.add(key)
        dead.kill()
        key = f"/a/without-{dead.directory.name}"
        await put(store, key, b"2")
        written.add(key)
        assert await listed(store, "/a/", len(written)) == written
        dead.start(wait=False)
        dead.wait_healthy()
    await store.close()
    for server in cluster:
        fresh = await connect([server])
        assert await listed(fresh, "/a/", len(written)) == written
        await fresh.close()
    for server in cluster[1:]:
        server.kill()
    with pytest.raises(UnavailableError):  # without a majority
        alone = await open_nats(servers_at(cluster[0].url, replicas=3), timeout=TIMEOUT)
        try:
            await alone.put("/a/b", b"2")
        finally:
            await alone.close()


async def test_a_watch_ends_with_its_server_and_resumes(cluster: list[NatsServer]) -> None:
    store = await connect(cluster)
    writer = await connect(cluster[1:])

    async def followed() -> Follower:
        follower = await follow(store, "/a/")
        await put(writer, "/a/b", b"1")
        await follower.until_state({"/a/b": b"1"})
        return follower

    follower = await persist(followed)
    cluster[0].kill()
    assert isinstance(await follower.failed(), UnavailableError)
    await put(writer, "/a/b", b"2")

    async def resumed() -> None:
        again = Follower(store, "/a/", follower.revision)
        await again.until_state({"/a/b": b"2"})
        await again.stop()

    await persist(resumed)
    await store.close()
    await writer.close()
