"""A `KeyValue` in memory, for code above the port; it passes the port's contract test, too."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from localpuppet.base.errors import UnavailableError
from localpuppet.fleet.bus.key_value import (
    Change,
    FullError,
    KeyListing,
    KeyRemoval,
    KeyValue,
    KeyValueEntry,
    KeyWrite,
    WatchOptions,
)
from localpuppet.fleet.leases.lease import KnownStores


async def _nobody(_kv: KeyValue, _born: float) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstStore(KnownStores):
    """No node knew another store."""

    path: Path = Path()
    online: Callable[[KeyValue, float], Awaitable[bool]] = _nobody

    def knew_another(self, born: float, *, now: float) -> bool:
        return False


@dataclass
class _Kept:
    entry: KeyValueEntry
    until: float | None


@dataclass
class MemoryStore:
    """The data that several clients share."""

    now: Callable[[], float] = time.monotonic  # returns the time, by which values expire
    # the store is unreachable: every call raises, every watch ends with an error
    away: bool = False
    # the warnings of a client about the server after it has connected
    warnings: tuple[str, ...] = ()
    born: float = 0.0  # when it began, in seconds since 1970
    full: bool = False  # the store has no room: writes raise, reads work
    revision: int = 0
    kept: dict[str, _Kept] = field(default_factory=dict)
    log: list[tuple[int, str]] = field(default_factory=list)
    watchers: set[asyncio.Event] = field(default_factory=set)

    def get(self, key: str) -> KeyValueEntry | None:
        kept = self.kept.get(key)
        if kept is None or (kept.until is not None and self.now() >= kept.until):
            self.kept.pop(key, None)
            return None
        return kept.entry

    def write(self, key: str, value: bytes, ttl: float | None) -> int:
        self.revision += 1
        until = None if ttl is None else self.now() + ttl
        self.kept[key] = _Kept(KeyValueEntry(key=key, value=value, revision=self.revision), until)
        self._tell(key)
        return self.revision

    def remove(self, key: str) -> None:
        self.revision += 1
        del self.kept[key]
        self._tell(key)

    def _tell(self, key: str) -> None:
        self.log.append((self.revision, key))
        self.wake()

    def wake(self) -> None:
        """Wake the watchers: a value changed, or the store became unreachable."""
        for event in self.watchers:
            event.set()

    def below(self, prefix: str) -> KeyListing:
        found = [self.get(key) for key in sorted(self.kept) if key.startswith(prefix)]
        return KeyListing(
            entries=tuple(entry for entry in found if entry is not None), revision=self.revision
        )

    def since(self, prefix: str, revision: int) -> list[Change]:
        """Return the last change of each key after a revision."""
        last = {key: number for number, key in self.log if number > revision}
        changes: list[tuple[int, Change]] = []
        for key, number in last.items():
            if not key.startswith(prefix):
                continue
            entry = self.get(key)
            if entry is not None:
                changes.append((number, KeyWrite(entry=entry)))
            elif key not in self.kept:
                changes.append((number, KeyRemoval(key=key, revision=number)))
        return [change for _, change in sorted(changes, key=lambda pair: pair[0])]


class MemoryKeyValue(KeyValue):
    """One client of a store."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(math.inf)
        self.store = store
        self.closed = False

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.store.warnings

    async def _born(self, prefix: str) -> float:
        await self._reach()
        return self.store.born

    async def fullness(self) -> str:
        return "the memory is full" if self.store.full else ""

    async def _get(self, key: str) -> KeyValueEntry | None:
        await self._reach()
        return self.store.get(key)

    async def _list(self, prefix: str, largest: int) -> KeyListing:
        await self._reach()
        return self._of_use(self.store.below(prefix), largest)

    def _of_use(self, listing: KeyListing, largest: int) -> KeyListing:
        return replace(
            listing, entries=tuple(one for one in listing.entries if len(one.value) <= largest)
        )

    async def _write(
        self, key: str, value: bytes, ttl: float | None, expected: int | None
    ) -> int | None:
        await self._reach()
        if self.store.full:
            raise FullError("is full", where="bus memory")
        if expected not in (None, self._revision(key)):
            return None
        return self.store.write(key, value, ttl)

    async def _remove(self, key: str, revision: int) -> bool:
        await self._reach()
        if self._revision(key) != revision:
            return False
        self.store.remove(key)
        return True

    def _revision(self, key: str) -> int:
        entry = self.store.get(key)
        return 0 if entry is None else entry.revision

    async def _watch(self, prefix: str, how: WatchOptions) -> AsyncGenerator[Change, None]:
        await self._reach()
        news = asyncio.Event()
        self.store.watchers.add(news)
        try:
            seen = self.store.revision
            if how.after is None or how.after > seen:
                yield self._of_use(self.store.below(prefix), how.largest)
            else:
                seen = how.after
            while True:
                changes = self.store.since(prefix, seen)
                seen = self.store.revision
                for change in changes:
                    if not isinstance(change, KeyWrite) or len(change.entry.value) <= how.largest:
                        yield change
                if seen == self.store.revision:
                    await news.wait()
                    news.clear()
                await self._reach()
        finally:
            self.store.watchers.discard(news)

    async def close(self) -> None:
        self.closed = True
        self.store.wake()

    async def _reach(self) -> None:
        await asyncio.sleep(0)  # other tasks run meanwhile, as with a real store
        if self.closed:
            raise UnavailableError("is closed", where="bus memory")
        if self.store.away:
            raise UnavailableError("cannot be reached", where="bus memory")
