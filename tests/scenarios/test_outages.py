"""The contract for servers that die, hang, restart and lose data, over each engine."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest

from localpuppet.base.errors import UnavailableError
from localpuppet.fleet.bus.key_value import KeyValue
from tests.rigs.engines import ServerEngine
from tests.rigs.following import Follower, follow
from tests.rigs.waiting import PATIENCE, answered

# The deadline of each call here, in seconds.
TIMEOUT = 1.5


@asynccontextmanager
async def impatient(served: ServerEngine) -> AsyncGenerator[KeyValue, None]:
    """Return a client whose calls have the deadline; a busy machine may connect it late."""
    store = await answered(lambda: served.connect(TIMEOUT))
    try:
        yield store
    finally:
        await store.close()


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


async def reach(
    store: KeyValue, follower: Follower, condition: Callable[[Follower], bool]
) -> Follower:
    """Return a follower, or its successor if a busy server misses the deadline, once it is so."""
    while True:
        try:
            await follower.until(partial(condition, follower))
        except UnavailableError:
            follower = await follow_again(store, follower)
        else:
            return follower


async def refused(store: KeyValue, prefix: str) -> None:
    """Check that every verb reports an unreachable server, and none an empty answer."""
    calls: list[Awaitable[object]] = [
        store.get(prefix + "a"),
        store.list(prefix),
        store.put(prefix + "a", b"2"),
        store.add_if_new(prefix + "b", b"2", ttl=10.0),
        store.remove_if_revision(prefix + "a", 1),
        anext(store.watch(prefix)),
    ]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [answer for answer in answers if not isinstance(answer, UnavailableError)] == []


async def test_a_killed_server_is_noticed_and_keeps_accepted_writes(served: ServerEngine) -> None:
    prefix = served.prefix()
    async with impatient(served) as store, served.open() as writer:
        await writer.put(prefix + "a", b"1")
        removed = await writer.put(prefix + "r", b"1")
        follower = await follow(store, prefix)
        served.server.kill()
        assert isinstance(await follower.failed(), UnavailableError)
        await refused(store, prefix)
        served.server.start()
        await writer.put(prefix + "b", b"2")
        assert await writer.remove_if_revision(prefix + "r", removed)
        again = await follow_again(store, follower)
        await writer.put(prefix + "c", b"3")
        everything = {prefix + "a": b"1", prefix + "b": b"2", prefix + "c": b"3"}
        again = await reach(store, again, lambda its: its.state == everything)
        listing = await writer.list(prefix)
        assert {entry.key: entry.value for entry in listing.entries} == everything
        await again.stop()


async def test_a_server_that_hangs_is_noticed(served: ServerEngine) -> None:
    prefix = served.prefix()
    async with impatient(served) as store:
        await answered(lambda: store.put(prefix + "a", b"1"))
        follower = await follow(store, prefix)
        served.server.freeze()
        try:
            assert isinstance(await follower.failed(), UnavailableError)
            await refused(store, prefix)
        finally:
            served.server.thaw()
        again = await follow_again(store, follower)
        again = await reach(store, again, lambda its: its.state == {prefix + "a": b"1"})
        await again.stop()


async def test_an_unreachable_server_is_an_error_from_the_beginning(served: ServerEngine) -> None:
    served.server.stop()
    try:
        with pytest.raises(UnavailableError) as caught:
            await asyncio.wait_for(served.connect(TIMEOUT), PATIENCE)
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

    async with impatient(served) as store, impatient(served) as reader:
        follower = await follow(reader, prefix)
        writers = [asyncio.create_task(write(store, f"w{i}")) for i in range(5)]
        for _ in range(2):
            follower = await reach(reader, follower, lambda its: len(its.state) == 5)
            served.server.kill()
            await follower.failed()
            served.server.start()
            follower = await follow_again(reader, follower)
        done.set()
        await asyncio.gather(*writers)
        follower = await reach(reader, follower, lambda its: its.state == acknowledged)
        await follower.stop()


async def test_a_watch_after_compaction_begins_with_a_listing(served: ServerEngine) -> None:
    prefix = served.prefix()
    async with served.open() as store:
        seen = await store.put(prefix + "a", b"1")
        removed = await store.put(prefix + "b", b"1")
        assert await store.remove_if_revision(prefix + "b", removed)
        await store.put(prefix + "c", b"1")
        served.compact()
        follower = Follower(store, prefix, seen)
        follower.state = {prefix + "a": b"1"}
        await follower.until_state({prefix + "a": b"1", prefix + "c": b"1"})
        await follower.stop()
