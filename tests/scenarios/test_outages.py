"""The contract for servers that die, hang, restart and lose data, over each engine."""

import asyncio
import re

import pytest

from localpuppet.base.errors import UnavailableError
from localpuppet.fleet.bus.key_value import KeyValue
from tests.rigs.engines import ServerEngine
from tests.rigs.following import Follower

# The deadline of each call here, in seconds.
TIMEOUT = 1.5


async def follow_again(store: KeyValue, follower: Follower) -> Follower:
    """Return a follower that continues where another ended, as soon as the server lets it."""
    while True:
        try:
            await store.list(follower.prefix)
        except UnavailableError:
            continue
        again = Follower(store, follower.prefix, follower.revision)
        again.state = dict(follower.state)
        return again


async def refused(store: KeyValue, prefix: str) -> None:
    """Check that every verb reports an unreachable server, and none an empty answer."""
    for call in (
        store.get(prefix + "a"),
        store.list(prefix),
        store.put(prefix + "a", b"2"),
        store.add_if_new(prefix + "b", b"2", ttl=10.0),
        store.remove_if_revision(prefix + "a", 1),
        anext(store.watch(prefix)),
    ):
        with pytest.raises(UnavailableError):
            # Ten times the deadline is no deadline: a busy machine may be slow, a hang is longer.
            await asyncio.wait_for(call, 10 * TIMEOUT)


async def test_a_killed_server_is_noticed_and_keeps_acknowledged_writes(
    served: ServerEngine,
) -> None:
    prefix = served.prefix()
    async with served.open(TIMEOUT) as store, served.open(TIMEOUT) as writer:
        await store.put(prefix + "a", b"1")
        removed = await store.put(prefix + "r", b"1")
        follower = Follower(store, prefix)
        await follower.listed()
        served.server.kill()
        assert isinstance(await follower.failed(), UnavailableError)
        await refused(store, prefix)
        served.server.start()
        await writer.put(prefix + "b", b"2")
        assert await writer.remove_if_revision(prefix + "r", removed)
        again = await follow_again(store, follower)
        await writer.put(prefix + "c", b"3")
        everything = {prefix + "a": b"1", prefix + "b": b"2", prefix + "c": b"3"}
        await again.until_state(everything)
        assert {one.key: one.value for one in (await store.list(prefix)).entries} == everything
        await again.stop()


async def test_a_server_that_hangs_is_noticed(served: ServerEngine) -> None:
    prefix = served.prefix()
    async with served.open(TIMEOUT) as store:
        await store.put(prefix + "a", b"1")
        follower = Follower(store, prefix)
        await follower.listed()
        served.server.freeze()
        try:
            assert isinstance(await follower.failed(), UnavailableError)
            await refused(store, prefix)
        finally:
            served.server.thaw()
        again = await follow_again(store, follower)
        await again.until_state({prefix + "a": b"1"})
        await again.stop()


async def test_an_unreachable_server_is_an_error_from_the_beginning(served: ServerEngine) -> None:
    served.server.stop()
    try:
        with pytest.raises(UnavailableError) as caught:
            await asyncio.wait_for(served.connect(TIMEOUT), 10 * TIMEOUT)
        assert str(served.server.port) in str(caught.value)
        assert re.search(r"buses\.(etcd|nats)\.servers", str(caught.value))
        assert "\n" not in str(caught.value)
    finally:
        served.server.start()


async def test_restarts_while_many_write(served: ServerEngine) -> None:
    """Nothing that was acknowledged is lost or missed, whatever the server does meanwhile."""
    prefix = served.prefix()
    acknowledged: dict[str, bytes] = {}
    done = asyncio.Event()

    async def write(store: KeyValue, name: str) -> None:
        for i in range(10_000):
            if done.is_set():
                return
            value = b"%d" % i
            while True:
                try:
                    await store.put(prefix + name, value)
                except UnavailableError:
                    continue
                break
            acknowledged[prefix + name] = value

    async with served.open(TIMEOUT) as store, served.open(TIMEOUT) as reader:
        follower = Follower(reader, prefix)
        await follower.listed()
        writers = [asyncio.create_task(write(store, f"w{i}")) for i in range(5)]
        for _ in range(2):
            await follower.until_keys(5)
            served.server.kill()
            await follower.failed()
            served.server.start()
            follower = await follow_again(reader, follower)
        done.set()
        await asyncio.gather(*writers)
        await follower.until_state(acknowledged)
        await follower.stop()


async def test_a_watch_after_compaction_begins_with_a_listing(served: ServerEngine) -> None:
    prefix = served.prefix()
    async with served.open(TIMEOUT) as store:
        seen = await store.put(prefix + "a", b"1")
        removed = await store.put(prefix + "b", b"1")
        assert await store.remove_if_revision(prefix + "b", removed)
        await store.put(prefix + "c", b"1")
        served.compact()
        follower = Follower(store, prefix, seen)
        follower.state = {prefix + "a": b"1"}
        await follower.until_state({prefix + "a": b"1", prefix + "c": b"1"})
        await follower.stop()
