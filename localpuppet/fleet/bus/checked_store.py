"""What every store of the bus checks before its engine is asked: keys, prefixes, values, deadlines.

Owns: the refusals that `KeyValue` promises, and one deadline for each call. An engine implements
the unchecked steps below (`_get`, `_list`, `_write`, `_remove`, `_watch`), and nothing in it looks
at the form of a key again. Refuses to know: servers, files, and what the values mean.

Invariants: no step of an engine sees a key, a prefix, a value or a ttl that the port refuses; a
revision that an engine's step gets is `None`, 0 (for "not there") or positive.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass

from localpuppet.base.errors import UnavailableError
from localpuppet.fleet.bus.deadline import in_time
from localpuppet.fleet.bus.key_value import (
    MAX_LISTING,
    MAX_VALUE,
    Change,
    Entry,
    Listing,
    check_key,
    check_prefix,
    check_value,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """How a watcher follows a prefix; `KeyValue.watch` says what each of these means."""

    after: int | None
    largest: int
    parts: bool


class CheckedStore(ABC):
    """The `KeyValue` that engines inherit; the port says what the methods promise.

    Args:
        timeout: The deadline of each call in seconds.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout

    @property
    def warnings(self) -> tuple[str, ...]:
        """See `KeyValue.warnings`; an engine without a server has none."""
        return ()

    @in_time
    async def get(self, key: str) -> Entry | None:
        """See `KeyValue.get`."""
        return await self._get(check_key(key))

    @in_time
    async def list(self, prefix: str, *, largest: int = MAX_VALUE) -> Listing:
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
        how = Following(after=after, largest=largest, parts=parts)
        async with aclosing(self._watch(check_prefix(prefix), how)) as changes:
            async for change in changes:
                yield change

    @abstractmethod
    async def close(self) -> None:
        """See `KeyValue.close`."""

    @abstractmethod
    async def _get(self, key: str) -> Entry | None:
        """Return the newest value of a key."""

    @abstractmethod
    async def _list(self, prefix: str, largest: int) -> Listing:
        """Return all that is below a prefix but for larger values, at one revision."""

    @abstractmethod
    async def _write(
        self, key: str, value: bytes, ttl: float | None, expected: int | None
    ) -> int | None:
        """Write a value; return its revision.

        Args:
            key: The key.
            value: The bytes.
            ttl: Seconds that the value stays; for ever when `None`.
            expected: The revision that the key must have now, 0 for "not there"; `None` for any.

        Returns:
            The revision; `None` when the key has another one than expected.
        """

    @abstractmethod
    async def _remove(self, key: str, revision: int) -> bool:
        """Remove a key if it still has that revision; return whether it had."""

    @abstractmethod
    def _watch(self, prefix: str, how: Following) -> AsyncGenerator[Change, None]:
        """Follow all that happens below a prefix; see `KeyValue.watch`."""


class Collected:
    """The entries of a listing that is taken whole, up to what a process can hold.

    Args:
        prefix: The prefix, for messages.
        where: The store, for messages.
        limit: The most bytes of keys and values.
    """

    def __init__(self, prefix: str, where: str, *, limit: int = MAX_LISTING) -> None:
        self._limit = limit
        self._prefix = prefix
        self._where = where
        self._size = 0
        self.entries: list[Entry] = []

    def add(self, entries: Iterable[Entry]) -> None:
        """Take some more.

        Raises:
            UnavailableError: There are more bytes than the limit.
        """
        for entry in entries:
            self._size += len(entry.key) + len(entry.value)
            if self._size > self._limit:
                raise UnavailableError(
                    f"holds more than {self._limit / 1024**2:g} MiB below {self._prefix}",
                    where=self._where,
                    hint="who writes so much there?",
                )
            self.entries.append(entry)
