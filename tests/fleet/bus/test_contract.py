"""The contract of `KeyValue`, and limits of listings, over every engine."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.fleet.bus.bus_limits import MAX_KEY, MAX_VALUE
from localpuppet.fleet.bus.key_value import (
    MAX_VALUE_TTL,
    PART,
    Change,
    KeyListing,
    KeyRemoval,
    KeyValue,
    KeyValueEntry,
    KeyWrite,
)
from localpuppet.fleet.bus.store_calls import ListingEntries
from tests.fleet.make import there
from tests.rigs.engines import Engine
from tests.rigs.following import Follower
from tests.rigs.long import with_sample

ALL_BYTES = bytes(range(256))


@asynccontextmanager
async def following(
    store: KeyValue, prefix: str, after: int | None = None
) -> AsyncGenerator[Follower, None]:
    follower = Follower(store, prefix, after)
    try:
        yield follower
    finally:
        await follower.stop()


async def until_gone(store: KeyValue, key: str) -> None:
    while await store.get(key) is not None:
        await asyncio.sleep(0.05)


class TestKeyValue:
    """What everything above the port may rely on."""

    async def test_a_value_is_read_as_it_was_written(self, engine: Engine) -> None:
        async with engine.open() as store:
            key = engine.prefix() + "web01.example.com"
            assert await store.get(key) is None
            revision = await store.put(key, b"one")
            assert await store.get(key) == KeyValueEntry(key=key, value=b"one", revision=revision)
            later = await store.put(key, b"two")
            assert later > revision > 0
            assert await store.get(key) == KeyValueEntry(key=key, value=b"two", revision=later)

    @pytest.mark.parametrize("size", [0, 1, 255, 4096, 65536, MAX_VALUE])
    async def test_values_are_any_bytes_up_to_the_limit(self, engine: Engine, size: int) -> None:
        value = (ALL_BYTES * (size // 256 + 1))[:size]
        async with engine.open() as writer, engine.open() as reader:
            prefix = engine.prefix()
            async with following(reader, prefix) as follower:
                await follower.listed()
                revision = await writer.put(prefix + "key", value)
                await follower.until_state({prefix + "key": value})
            entry = KeyValueEntry(key=prefix + "key", value=value, revision=revision)
            assert await reader.get(prefix + "key") == entry
            assert (await reader.list(prefix)).entries == (entry,)

    @pytest.mark.parametrize("ttl", [0.0, -1.0, MAX_VALUE_TTL * 1.1, math.inf, math.nan])
    async def test_an_invalid_ttl_is_refused(self, engine: Engine, ttl: float) -> None:
        key = engine.prefix() + "a"
        async with engine.open() as store:
            for call in (
                store.put(key, b"1", ttl=ttl),
                store.add_if_new(key, b"1", ttl=ttl),
                store.set_if_revision(key, b"1", 1, ttl=ttl),
            ):
                with pytest.raises(InvalidInputError):
                    await call
            assert await store.put(key, b"1", ttl=MAX_VALUE_TTL)
            assert there(await store.get(key)).value == b"1"

    async def test_a_larger_value_is_refused(self, engine: Engine) -> None:
        async with engine.open() as store:
            key = engine.prefix() + "key"
            for refused in (
                store.put(key, bytes(MAX_VALUE + 1)),
                store.add_if_new(key, bytes(MAX_VALUE + 1)),
                store.set_if_revision(key, bytes(MAX_VALUE + 1), 1),
            ):
                with pytest.raises(InvalidInputError):
                    await refused
            assert await store.get(key) is None

    @pytest.mark.parametrize("letters", ["_@=+:-", "a.b.c", "A-Z", "a" * (MAX_KEY - 40)])
    async def test_keys_of_every_letter(self, engine: Engine, letters: str) -> None:
        async with engine.open() as store:
            prefix = engine.prefix()
            revision = await store.put(prefix + letters, b"x")
            entry = KeyValueEntry(key=prefix + letters, value=b"x", revision=revision)
            assert await store.list(prefix) == KeyListing(entries=(entry,), revision=revision)

    @pytest.mark.parametrize(
        "key", ["", "/", "a", "/a/", "//a", "/a b", "/a*", "/a/.b", "/a\n", "/~"]
    )
    async def test_an_invalid_key_is_refused(self, engine: Engine, key: str) -> None:
        async with engine.open() as store:
            for refused in (
                store.get(key),
                store.put(key, b""),
                store.add_if_new(key, b""),
                store.set_if_revision(key, b"", 1),
                store.remove_if_revision(key, 1),
                store.list(key.rstrip("/")),
                anext(store.watch(key.rstrip("/"))),
            ):
                with pytest.raises(InvalidInputError):
                    await refused

    async def test_a_prefix_ends_at_its_slash(self, engine: Engine) -> None:
        async with engine.open() as store:
            prefix = engine.prefix()
            names = ["a/b", "a/b/c", "a/b/d/e", "a/b-c", "a/b.c", "a/bc", "a/b0/c", "a/B/c"]
            for name in names:
                await store.put(prefix + name, name.encode())
            listing = await store.list(prefix + "a/b/")
            assert [entry.value for entry in listing.entries] == [b"a/b/c", b"a/b/d/e"]
            everything = await store.list(prefix)
            keys = [entry.key for entry in everything.entries]
            assert keys == sorted(prefix + name for name in names)
            empty = KeyListing(entries=(), revision=everything.revision)
            assert await store.list(prefix + "none/") == empty

    @pytest.mark.slow
    @pytest.mark.parametrize("count", with_sample([1_000, 10_000], 1_000))
    async def test_thousands_of_keys_below_a_prefix(self, engine: Engine, count: int) -> None:
        async with engine.open() as store:
            prefix = engine.prefix()
            # Ten MiB in all: more than one message of gRPC may hold.
            value = ALL_BYTES * (40_000 // count)
            revisions: list[int] = []
            for start in range(0, count, 100):
                revisions += await asyncio.gather(
                    *(store.put(f"{prefix}k{i:05}", value) for i in range(start, start + 100))
                )
            listing = await store.list(prefix)
            keys = [entry.key for entry in listing.entries]
            assert keys == [f"{prefix}k{i:05}" for i in range(count)]
            assert {entry.value for entry in listing.entries} == {value}
            assert listing.revision == max(revisions)
            async with following(store, prefix) as follower:
                assert await follower.listed() == listing

    async def test_only_a_single_client_adds_a_new_key(self, engine: Engine) -> None:
        async with engine.open() as one, engine.open() as other:
            key = engine.prefix() + "lease"
            for _ in range(3):  # a removed key is as new as a key that never existed
                won = await asyncio.gather(
                    *(store.add_if_new(key, b"%d" % i) for i in range(8) for store in (one, other))
                )
                (revision,) = [revision for revision in won if revision is not None]
                assert there(await one.get(key)).revision == revision
                assert await other.remove_if_revision(key, revision)
                assert await one.get(key) is None

    async def test_concurrent_writers_lose_no_step(self, engine: Engine) -> None:
        async with engine.open() as one, engine.open() as other:
            key = engine.prefix() + "counter"
            await one.put(key, b"0")

            async def count(store: KeyValue) -> None:
                done = 0
                while done < 10:
                    entry = there(await store.get(key))
                    value = b"%d" % (int(entry.value) + 1)
                    if await store.set_if_revision(key, value, entry.revision) is not None:
                        done += 1

            await asyncio.gather(*(count(store) for store in (one, other, one, other)))
            entry = there(await one.get(key))
            assert entry.value == b"40"

    async def test_a_revision_that_has_passed_is_refused(self, engine: Engine) -> None:
        async with engine.open() as store:
            key = engine.prefix() + "key"
            assert await store.set_if_revision(key, b"x", 1) is None
            assert not await store.remove_if_revision(key, 1)
            old = await store.put(key, b"old")
            new = there(await store.set_if_revision(key, b"new", old))
            assert new > old
            assert await store.set_if_revision(key, b"x", old) is None
            assert not await store.remove_if_revision(key, old)
            assert not await store.remove_if_revision(key, new + 1)
            assert await store.get(key) == KeyValueEntry(key=key, value=b"new", revision=new)
            assert await store.remove_if_revision(key, new)
            assert not await store.remove_if_revision(key, new)
            for gone in (0, -1, new, new + 1):  # the last is the removal's own, where it has one
                assert await store.set_if_revision(key, b"x", gone) is None
                assert not await store.remove_if_revision(key, gone)
            assert there(await store.add_if_new(key, b"again")) > new

    async def test_a_ttl_is_kept_and_ends(self, engine: Engine) -> None:
        async with engine.open() as store, engine.open() as other:
            prefix = engine.prefix()
            key = prefix + "presence"
            began = time.monotonic()
            revision = await store.put(key, b"here", ttl=1.5)
            stays = await store.put(key + "-stays", b"here", ttl=3600.0)
            assert await store.add_if_new(key + "-stays", b"other") is None
            await until_gone(other, key)
            assert time.monotonic() - began >= 1.5
            async with engine.open() as fresh:
                assert await fresh.get(key) is None
                left = (await fresh.list(prefix)).entries
            assert [entry.revision for entry in left] == [stays]
            assert await store.set_if_revision(key, b"late", revision) is None
            assert not await store.remove_if_revision(key, revision)
            assert await store.add_if_new(key, b"new") is not None

    async def test_each_write_resets_the_ttl(self, engine: Engine) -> None:
        async with engine.open() as store:
            key = engine.prefix() + "key"
            await store.put(key, b"short", ttl=1.0)
            began = time.monotonic()
            first = await store.put(key, b"long", ttl=4.0)
            await store.put(key + "-for-ever", b"short", ttl=1.0)
            await store.put(key + "-for-ever", b"kept")
            marker = key + "-marker"
            await store.put(marker, b"", ttl=1.0)
            await until_gone(store, marker)
            entry = await store.get(key)
            if entry is None:
                assert time.monotonic() - began >= 4.0
            else:
                assert entry.revision == first
            assert await store.get(key + "-for-ever") is not None

    async def test_an_expiry_is_never_published_as_a_write(self, engine: Engine) -> None:
        async with engine.open() as store, engine.open() as other:
            prefix = engine.prefix()
            async with following(other, prefix) as follower:
                start = (await follower.listed()).revision
                await store.put(prefix + "short", b"1", ttl=1.0)
                await until_gone(store, prefix + "short")
                await store.put(prefix + "marker", b"2")
                await follower.until(lambda: prefix + "marker" in follower.state)
                told = [put.entry.key for put in follower.puts]
                # A busy follower may read the bus only after the expiry.
                assert told in ([prefix + "short", prefix + "marker"], [prefix + "marker"])
            async with following(other, prefix, start) as late:
                await late.until(lambda: prefix + "marker" in late.state)
                assert {put.entry.key for put in late.puts} == {prefix + "marker"}
                assert late.state == {prefix + "marker": b"2"}
            async with following(store, prefix) as fresh:
                await fresh.until_state({prefix + "marker": b"2"})

    async def test_a_watch_begins_with_a_listing(self, engine: Engine) -> None:
        async with engine.open() as store:
            prefix = engine.prefix()
            one = await store.put(prefix + "one", b"1")
            await store.put(prefix[:-1] + "x/other", b"not ours")
            async with following(store, prefix) as follower:
                listing = await follower.listed()
                entry = KeyValueEntry(key=prefix + "one", value=b"1", revision=one)
                assert listing.entries == (entry,)
                assert listing.revision >= one
                two = await store.put(prefix + "two", b"2")
                await store.put(prefix[:-1] + "x/other", b"still not ours")
                assert await store.remove_if_revision(prefix + "one", one)
                await follower.until_state({prefix + "two": b"2"})
                put, gone = follower.changes[1:]
                written = KeyValueEntry(key=prefix + "two", value=b"2", revision=two)
                assert put == KeyWrite(entry=written)
                assert isinstance(gone, KeyRemoval)
                assert (gone.key, gone.revision > two) == (prefix + "one", True)

    async def test_a_watch_resumes_after_a_revision(self, engine: Engine) -> None:
        async with engine.open() as store, engine.open() as other:
            prefix = engine.prefix()
            await store.put(prefix + "a", b"1")
            removed = await store.put(prefix + "b", b"1")
            seen = (await other.list(prefix)).revision
            async with following(other, prefix, seen) as now:
                again = await store.put(prefix + "a", b"2")
                assert await store.remove_if_revision(prefix + "b", removed)
                await store.put(prefix + "c", b"3")
                await now.until(lambda: prefix + "c" in now.state)
                assert now.state == {prefix + "a": b"2", prefix + "c": b"3"}
                assert not [change for change in now.changes if isinstance(change, KeyListing)]
            async with following(other, prefix, again) as late:
                await late.until(lambda: prefix + "c" in late.state)
                assert [put.entry.key for put in late.puts] == [prefix + "c"]
                assert [gone.key for gone in late.gone] == [prefix + "b"]

    async def test_a_new_client_resumes_where_another_ended(self, engine: Engine) -> None:
        prefix = engine.prefix()
        async with engine.open() as store:
            removed = await store.put(prefix + "a", b"1")
            await store.remove_if_revision(prefix + "a", removed)
            await store.put(prefix + "b", b"2")
        async with engine.open() as store, following(store, prefix, removed) as follower:
            await follower.until_state({prefix + "b": b"2"})
            if engine.remembers:
                assert [gone.key for gone in follower.gone] == [prefix + "a"]

    async def test_a_revision_from_the_future_brings_a_listing(self, engine: Engine) -> None:
        async with engine.open() as store:
            prefix = engine.prefix()
            revision = await store.put(prefix + "a", b"1")
            async with following(store, prefix, revision + 1_000_000) as follower:
                assert (await follower.listed()).revision < revision + 1_000_000

    async def test_nothing_is_missed_between_listing_and_following(self, engine: Engine) -> None:
        async with engine.open() as writer, engine.open() as reader:
            prefix = engine.prefix()
            followers: list[Follower] = []
            for i in range(100):
                await writer.put(f"{prefix}k{i % 40:02}", b"%d" % i)
                if i % 10 == 5:
                    followers.append(Follower(reader, prefix))
            final = {entry.key: entry.value for entry in (await writer.list(prefix)).entries}
            assert len(final) == 40
            for follower in followers:
                await follower.until_state(final)
                listings = [one for one in follower.changes if isinstance(one, KeyListing)]
                assert listings == [follower.changes[0]]
                await follower.stop()

    async def test_several_watchers_in_several_clients(self, engine: Engine) -> None:
        async with engine.open() as one, engine.open() as other:
            prefix = engine.prefix()
            followers = [Follower(store, prefix) for store in (one, one, other, other)]
            for follower in followers:
                await follower.listed()
            await asyncio.gather(*(one.put(f"{prefix}{i}", b"%d" % i) for i in range(20)))
            for follower in followers:
                await follower.until_state({f"{prefix}{i}": b"%d" % i for i in range(20)})
                await follower.stop()

    async def test_a_closed_store_raises_and_ends_its_watches(self, engine: Engine) -> None:
        prefix = engine.prefix()
        async with engine.open() as store:
            follower = Follower(store, prefix)
            await follower.listed()
            await store.close()
            assert isinstance(await follower.failed(), UnavailableError)
            for refused in (
                store.get(prefix + "a"),
                store.list(prefix),
                store.put(prefix + "a", b""),
                store.remove_if_revision(prefix + "a", 1),
                anext(store.watch(prefix)),
            ):
                with pytest.raises(UnavailableError):
                    await refused

    async def test_a_store_that_lost_its_data_is_another_one(self, lossy: Engine) -> None:
        begun = time.time()
        async with lossy.open() as store:
            prefix = lossy.prefix()
            for number in range(20):  # so that the new one is behind
                await store.put(prefix + "a", b"%d" % number)
            first = await store.born(prefix)
            assert begun - 1 < first < time.time() + 1
            async with lossy.open() as other:
                assert await other.born(prefix) == first
            async with following(store, prefix) as follower:
                await follower.listed()
                lossy.lose_data()
                async with lossy.open() as other:
                    assert await other.get(prefix + "a") is None
                    assert await other.born(prefix) > first
                    later = await other.born(prefix)
                    await other.put(prefix + "new", b"2")
                assert isinstance(await follower.failed(), UnavailableError), "so it connects again"
            async with following(store, prefix, follower.revision) as again:
                await again.until_state({prefix + "new": b"2"})
                assert isinstance(again.changes[0], KeyListing)
            assert await store.born(prefix) == later


SIZE = 100_000
COUNT = 40


async def test_values_that_are_too_large_are_passed_over(engine: Engine) -> None:
    prefix = engine.prefix()
    async with engine.open() as store:
        await store.put(f"{prefix}large", bytes(101))
        await store.put(f"{prefix}small", bytes(100))
        listing = await store.list(prefix, largest=100)
        assert [entry.key for entry in listing.entries] == [f"{prefix}small"]
        changes = store.watch(prefix, largest=100)
        first = await anext(changes)
        assert isinstance(first, KeyListing)
        assert first.entries == listing.entries
        await store.put(f"{prefix}large", bytes(101))
        await store.put(f"{prefix}last", bytes(100))
        change = await anext(changes)
        assert isinstance(change, KeyWrite)
        assert change.entry.key == f"{prefix}last"
        await changes.aclose()


async def test_a_listing_in_parts_has_all_keys_and_then_the_watch_continues(engine: Engine) -> None:
    prefix = engine.prefix()
    keys = {f"{prefix}{number:03}" for number in range(COUNT)}
    async with engine.open() as store:
        for key in sorted(keys):
            await store.put(key, bytes(SIZE))
        changes = store.watch(prefix, parts=True)
        told: set[str] = set()
        parts: list[Change] = []
        more = True
        while more:
            part = await anext(changes)
            assert isinstance(part, KeyListing)
            assert sum(len(entry.value) for entry in part.entries) < 8 * PART
            told |= {entry.key for entry in part.entries}
            parts.append(part)
            more = part.more
        assert told == keys
        assert engine.name in ("memory", "relay", "sqlite") or len(parts) > 1
        await store.put(f"{prefix}new", b"1")
        change = await anext(changes)
        assert isinstance(change, KeyWrite)
        assert change.entry.key == f"{prefix}new"
        await changes.aclose()


def test_a_listing_that_no_process_could_hold_is_refused() -> None:
    found = ListingEntries("/a/", "bus", limit=10)
    found.add([KeyValueEntry(key="/a/b", value=b"123456", revision=1)])
    with pytest.raises(UnavailableError, match="below /a/"):
        found.add([KeyValueEntry(key="/a/c", value=b"", revision=2)])
