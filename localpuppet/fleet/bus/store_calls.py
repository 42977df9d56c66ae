"""Calls to a store: the checks that all engines share, deadlines, pauses between attempts, outages.

This module decides what it means that a client library cancels a task, that a watch ends, and that
a store cannot be closed.

A call may have to reconnect, prepare the stream and then send its request: these steps share one
timeout. Steps, also in tasks that they start, find the deadline in their context.

An engine implements the unchecked steps (`_get`, `_list`, `_write`, `_remove`, `_watch`) and checks
no key again. A step never gets a key, prefix, value or ttl that the port rejects; the revision that
it gets is `None`, 0 (the key does not exist) or positive.
"""

import asyncio
import functools
import math
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Iterable
from contextlib import aclosing
from contextvars import ContextVar
from random import SystemRandom
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from localpuppet.base.errors import UnavailableError
from localpuppet.base.machine.ports import LineKind, Log
from localpuppet.base.value import Value
from localpuppet.fleet.bus.bus_limits import MAX_LISTING, MAX_VALUE
from localpuppet.fleet.bus.key_value import (
    Change,
    KeyListing,
    KeyValue,
    KeyValueEntry,
    RefusedError,
    check_key,
    check_prefix,
    check_value,
)

Result = TypeVar("Result")
# Seconds after which a task that continues despite its cancellation is cancelled again.
CANCEL_AGAIN = 1.0
# Seconds between two looks at the beginning of a store that stays connected.
LOOK = 30.0


async def ours(work: Awaitable[Result]) -> Result:
    """Await a store's call; a cancellation by the store's library is an outage.

    A client library that cancels what waits for a lost connection would end the calling task
    silently: a task group takes a cancelled task for one that was meant to end.
    """
    try:
        return await work
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise UnavailableError("the connection was lost", where="bus") from error


async def cancel_all(
    tasks: Collection["asyncio.Task[None]"], *, again: float = CANCEL_AGAIN
) -> None:
    """Cancel tasks until they end.

    A cancellation is lost if a connection fails at the same moment: `asyncio.wait_for` and task
    groups of Python 3.11 then raise the connection's error only, and the task tries again.

    Args:
        again: Seconds after which tasks that continue are cancelled again.
    """
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=again)


class StoreChange:
    """Notices that a store was connected again, or is another one."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._kv: KeyValue | None = None
        self._due = 0.0
        self.born = 0.0

    async def noticed(self, kv: KeyValue) -> bool:
        """Return whether what was written before may be missing in the store."""
        now = asyncio.get_running_loop().time()
        if kv is self._kv and now < self._due:
            return False
        born = await ours(kv.born(self._prefix))
        changed = kv is not self._kv or born != self.born
        self._kv, self._due, self.born = kv, now + LOOK, born
        return changed


def is_outage(error: BaseException) -> bool:
    """Return whether an error is an outage of the bus, and not a refusal by it."""
    return isinstance(error, UnavailableError) and not isinstance(error, RefusedError)


def log_failure(log: Log, text: str, error: BaseException) -> None:
    """Log why a follower of the bus is not current.

    The owner of the connection logs an outage, once for all that use it: here it is a detail.
    """
    (log.debug if is_outage(error) else log.warning)(f"{text}: {error}", kind=LineKind.INVENTORY)


async def unending(work: Awaitable[None]) -> None:
    """Await a task that must not end: its end is an outage.

    An agent whose watch ended without an error would miss all changes, without noticing.
    """
    await ours(work)
    raise UnavailableError("the bus follower ended without an error", where="bus")


async def close(kv: KeyValue | None, log: Log) -> None:
    """Close a store, if given; an unreachable server does not matter any more."""
    if kv is None:
        return
    try:
        await ours(kv.close())
    except UnavailableError as error:
        log.debug(f"closing the bus: {error}", kind=LineKind.BUS)


_END: ContextVar[float] = ContextVar("_END", default=math.inf)
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


class DeadlineCalls(Protocol):
    """A store whose calls have a deadline."""

    @property
    def timeout(self) -> float:
        """Return the seconds that a call may take."""


_Store = TypeVar("_Store", bound=DeadlineCalls)


def end_of_step(seconds: float) -> float:
    """Return the deadline of a step in monotonic seconds."""
    return min(time.monotonic() + seconds, _END.get())


def in_time(
    method: Callable[Concatenate[_Store, _Given], Coroutine[Any, Any, _Result]],
) -> Callable[Concatenate[_Store, _Given], Coroutine[Any, Any, _Result]]:
    """Wrap a method so that its steps share the store's timeout, nested calls included."""

    @functools.wraps(method)
    async def timed(store: _Store, /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        token = _END.set(end_of_step(store.timeout))
        try:
            return await method(store, *args, **kwargs)
        finally:
            _END.reset(token)

    return timed


_CHANCE = SystemRandom().random
FIRST = 0.1
LONGEST = 0.5


class Backoff:
    """Pauses between attempts to reach an unreachable server.

    All nodes lose a server at the same moment, so each pause is random: from half of a time to all
    of it. That time doubles from `FIRST` seconds to the longest.
    """

    def __init__(self, chance: Callable[[], float] = _CHANCE, *, longest: float = LONGEST) -> None:
        self._chance = chance
        self._longest = longest
        self._whole = FIRST

    def reset(self) -> None:
        """Start again with the shortest pause, after the server has answered."""
        self._whole = FIRST

    def pause(self) -> float:
        """Return the seconds of the next pause."""
        whole, self._whole = self._whole, min(2 * self._whole, self._longest)
        return whole * (1 + self._chance()) / 2


class WatchOptions(Value):
    """The options of a watch; see `KeyValue.watch`."""

    after: int | None
    largest: int
    parts: bool


class CheckedStore(ABC):
    """The base class of all engines; `KeyValue` documents the methods."""

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
        """Write a value for `ttl` seconds; return its revision.

        If the key does not have the revision `expected` (0 for none) now, it returns `None`.
        """

    @abstractmethod
    async def _remove(self, key: str, revision: int) -> bool:
        """Remove a key if it has the given revision; return whether it had."""

    @abstractmethod
    def _watch(self, prefix: str, how: WatchOptions) -> AsyncGenerator[Change, None]:
        """Yield the changes below a prefix; see `KeyValue.watch`."""


class ListingEntries:
    """The entries of a listing, in memory: at most `limit` bytes of keys and values."""

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
