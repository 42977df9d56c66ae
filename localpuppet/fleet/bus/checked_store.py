"""Checks of keys, prefixes, values and deadlines that all engines of the bus share.

An engine implements the unchecked steps (`_get`, `_list`, `_write`, `_remove`, `_watch`) and checks
no key again. A step never gets a key, prefix, value or ttl that the port rejects; the revision that
it gets is `None`, 0 (the key does not exist) or positive.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

from localpuppet.base.errors import UnavailableError
from localpuppet.base.value import Value
from localpuppet.fleet.bus.bus_limits import MAX_LISTING, MAX_VALUE
from localpuppet.fleet.bus.key_value import (
    Change,
    KeyListing,
    KeyValueEntry,
    check_key,
    check_prefix,
    check_value,
)
from localpuppet.fleet.bus.outage import in_time


class WatchOptions(Value):
    """The options of a watch; see `KeyValue.watch`."""

    after: int | None
    largest: int
    parts: bool


class CheckedStore(ABC):
    """The base class of all engines; `KeyValue` documents the methods.

    Args:
        timeout: The deadline of each call in seconds.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout

    @property
    def warnings(self) -> tuple[str, ...]:
        """See `KeyValue.warnings`; an engine without a server has no warnings."""
        return ()

    async def fullness(self) -> str:
        """See `KeyValue.fullness`; most engines only know it after a write."""
        return ""

    @in_time
    async def born(self, prefix: str) -> float:
        """See `KeyValue.born`."""
        return await self._born(check_prefix(prefix))

    @in_time
    async def get(self, key: str) -> KeyValueEntry | None:
        """See `KeyValue.get`."""
        return await self._get(check_key(key))

    @in_time
    async def list(self, prefix: str, *, largest: int = MAX_VALUE) -> KeyListing:
        """See `KeyValue.list`."""
        return await self._list(check_prefix(prefix), largest)

    @in_time
    async def put(self, key: str, value: bytes, *, ttl: float | None = None) -> int:
        """See `KeyValue.put`."""
        revision = await self._write(check_key(key), check_value(value, ttl), ttl, None)
        if revision is None:
            raise AssertionError("a write without a condition cannot lose")
        return revision

    @in_time
    async def add_if_new(self, key: str, value: bytes, *, ttl: float | None = None) -> int | None:
        """See `KeyValue.add_if_new`."""
        return await self._write(check_key(key), check_value(value, ttl), ttl, 0)

    @in_time
    async def set_if_revision(
        self, key: str, value: bytes, revision: int, *, ttl: float | None = None
    ) -> int | None:
        """See `KeyValue.set_if_revision`."""
        check_key(key)
        check_value(value, ttl)
        return await self._write(key, value, ttl, revision) if revision > 0 else None

    @in_time
    async def remove_if_revision(self, key: str, revision: int) -> bool:
        """See `KeyValue.remove_if_revision`."""
        check_key(key)
        return revision > 0 and await self._remove(key, revision)

    async def watch(
        self,
        prefix: str,
        *,
        after: int | None = None,
        largest: int = MAX_VALUE,
        parts: bool = False,
    ) -> AsyncGenerator[Change, None]:
        """See `KeyValue.watch`."""
        how = WatchOptions(after=after, largest=largest, parts=parts)
        async with aclosing(self._watch(check_prefix(prefix), how)) as changes:
            async for change in changes:
                yield change

    @abstractmethod
    async def close(self) -> None:
        """See `KeyValue.close`."""

    @abstractmethod
    async def _born(self, prefix: str) -> float:
        """Return when the store of a prefix began; 0 if this is unknown."""

    @abstractmethod
    async def _get(self, key: str) -> KeyValueEntry | None:
        """Return the newest value of a key."""

    @abstractmethod
    async def _list(self, prefix: str, largest: int) -> KeyListing:
        """Return the entries below a prefix at one revision, except those larger than `largest`."""

    @abstractmethod
    async def _write(
        self, key: str, value: bytes, ttl: float | None, expected: int | None
    ) -> int | None:
        """Write a value; return its revision.

        Args:
            ttl: Seconds until it expires; `None` for never.
            expected: The revision that the key must have now, 0 if it must not exist; `None` for
                any.

        Returns:
            The revision; `None` if the key has another revision than expected.
        """

    @abstractmethod
    async def _remove(self, key: str, revision: int) -> bool:
        """Remove a key if it has the given revision; return whether it had."""

    @abstractmethod
    def _watch(self, prefix: str, how: WatchOptions) -> AsyncGenerator[Change, None]:
        """Yield the changes below a prefix; see `KeyValue.watch`."""


class ListingEntries:
    """The entries of a listing, collected in memory up to a limit.

    Args:
        limit: Maximum bytes of keys and values.
    """

    def __init__(self, prefix: str, where: str, *, limit: int = MAX_LISTING) -> None:
        self._limit = limit
        self._prefix = prefix
        self._where = where
        self._size = 0
        self.entries: list[KeyValueEntry] = []

    def add(self, entries: Iterable[KeyValueEntry]) -> None:
        """Add entries."""
        for entry in entries:
            self._size += len(entry.key) + len(entry.value)
            if self._size > self._limit:
                raise UnavailableError(
                    f"holds more than {self._limit / 1024**2:g} MiB below {self._prefix}",
                    where=self._where,
                    hint="find out which node writes that much",
                )
            self.entries.append(entry)
