"""Limits of a listing: useless values, parts, and a total that is too large."""

import pytest

from localpuppet.base.errors import UnavailableError
from localpuppet.fleet.bus.checked_store import ListingEntries
from localpuppet.fleet.bus.key_value import PART, Change, KeyListing, KeyValueEntry, KeyWrite
from tests.rigs.engines import Engine

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
