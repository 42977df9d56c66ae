"""The port of the bus's store: a few verbs over keys, with revisions, expiry and watches.

Everything that nodes exchange (triggers, presence, leases, requests) is written once, above this
port. Adapters: SQLite on one machine, etcd, NATS JetStream; one contract test class runs over all
of them. A lost race returns `None`, an unreachable store raises; neither looks like an empty
result.

Every adapter guarantees:

- A revision is a positive integer of 63 bits that grows with every write to the store, whatever the
  key. A larger one from a server or a forger is rejected.
- `ttl` means "gone no earlier than": a value stays for at least that time, and disappears for
  readers some time after. No watcher takes an expiry for a write.
- A write that returned survives a clean restart and a kill -9 of the server.
- Every call ends within the deadline that the adapter was made with. A call may have to reconnect,
  prepare the stream and then send its request: these steps share one timeout. Steps, also in tasks
  that they start, find the deadline in their context.
"""

import functools
import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.value import Value
from localpuppet.fleet.bus.bus_limits import MAX_KEY, MAX_VALUE

MAX_REVISION = 2**63 - 1
MAX_VALUE_TTL = 10 * 365 * 86400.0
# Bytes of one part of a listing in parts.
PART = 1024 * 1024
# Bytes that a store must have left for the presence of a node.
ROOM = 4096
_KEY = re.compile(r"(?:/[A-Za-z0-9_@=+:-][A-Za-z0-9_.@=+:-]*)+")


def parse_revision(number: int | str) -> int:
    """Return a revision from another system, 0 for none; raise `ValueError` for other numbers."""
    revision = int(number)
    if not 0 <= revision <= MAX_REVISION:
        raise ValueError("not a revision")
    return revision


class RefusedError(UnavailableError):
    """The server denies this client the operation until an operator changes the permissions."""


class FullError(UnavailableError):
    """The server answers and can be read, but has no room for a value: nothing was written."""


class KeyValueEntry(Value):
    """A key with its value, the bytes exactly as written."""

    key: str
    value: bytes
    revision: int


class KeyListing(Value):
    """All entries below a prefix at one moment, by key; a watcher discards earlier knowledge.

    Changes after `revision` are not included. If `more` parts follow, see `KeyValue.watch`.
    """

    entries: tuple[KeyValueEntry, ...]
    revision: int
    more: bool = False


class KeyWrite(Value):
    """A value was written."""

    entry: KeyValueEntry


class KeyRemoval(Value):
    """A key was removed or has expired: not every store can distinguish the two."""

    key: str
    revision: int


Change = KeyListing | KeyWrite | KeyRemoval


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


class WatchOptions(Value):
    """The options of a watch; see `KeyValue.watch`."""

    after: int | None
    largest: int
    parts: bool


class KeyValue(ABC):
    """A store of keys that nodes share.

    Keys look like paths: `/a/b.c/d`, see `check_key`. A prefix is a key with a final `/`, and means
    every key below it.

    All methods raise `UnavailableError` if the store cannot be reached, denies access or does not
    answer within the deadline. They raise `InvalidInputError` for a malformed key or prefix, a
    value of more than `MAX_VALUE` bytes, or a ttl that is not above 0 and at most `MAX_VALUE_TTL`
    seconds. After an `UnavailableError` from a write, it is unknown whether the write took place.

    An adapter implements the steps (`_get`, `_list`, `_write`, `_remove`, `_watch`), which get no
    key, prefix, value or ttl that the port rejects, and a revision that is `None`, 0 (the key does
    not exist) or positive.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return warnings about this server for the operator (such as a weak version)."""
        return ()

    @in_time
    async def born(self, prefix: str) -> float:
        """Return when the store of a prefix began, in seconds since 1970, UTC.

        A store that has lost its data is another one: it began later. 0 means unknown.
        """
        return await self._born(check_prefix(prefix))

    async def fullness(self) -> str:
        """Return why the server has no room for values, one line; empty if it may have.

        Most engines only know it after a write.
        """
        return ""

    @in_time
    async def get(self, key: str) -> KeyValueEntry | None:
        """Return the newest value of a key; `None` if the key does not exist."""
        return await self._get(check_key(key))

    @in_time
    async def list(self, prefix: str, *, largest: int = MAX_VALUE) -> KeyListing:
        """Return all entries below a prefix, at one revision, except those larger than `largest`.

        Raises:
            UnavailableError: Also if the entries exceed `MAX_LISTING` bytes.
        """
        return await self._list(check_prefix(prefix), largest)

    @in_time
    async def put(self, key: str, value: bytes, *, ttl: float | None = None) -> int:
        """Write a value unconditionally; return its revision.

        Args:
            ttl: Seconds until it expires; `None` for never. Each write sets the ttl again.
        """
        revision = await self._write(check_key(key), check_value(value, ttl), ttl, None)
        if revision is None:
            raise AssertionError("a write without a condition cannot lose")
        return revision

    @in_time
    async def add_if_new(self, key: str, value: bytes, *, ttl: float | None = None) -> int | None:
        """Write a value if the key does not exist; return its revision, else `None`."""
        return await self._write(check_key(key), check_value(value, ttl), ttl, 0)

    @in_time
    async def set_if_revision(
        self, key: str, value: bytes, revision: int, *, ttl: float | None = None
    ) -> int | None:
        """Write a value if the key has the given revision; return the new revision, else `None`."""
        check_key(key)
        check_value(value, ttl)
        return await self._write(key, value, ttl, revision) if revision > 0 else None

    @in_time
    async def remove_if_revision(self, key: str, revision: int) -> bool:
        """Remove a key if it has the given revision; return whether it had."""
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
        """Yield the changes below a prefix, without an end.

        Args:
            after: The last revision seen: of a `KeyListing`, a `KeyWrite` or a `KeyRemoval`. `None`
                requests a `KeyListing` first.
            largest: Maximum bytes of a value; writes of larger values are skipped. Others can write
                as much as a store accepts, so a watcher passes what its kind of key needs.
            parts: Whether listings may come in parts of about `PART` bytes, all but the last with
                `more`. A watcher that processes one entry at a time then needs the memory of one
                part only. A key may come twice, the newer value later, and a listing may restart
                before its last part.

        Yields:
            A `KeyListing`, or the changes after `after` in the order of their revisions. If those
                changes are no longer available (compacted, another store, a server that lost them),
                a `KeyListing` comes instead. It may come again at any time, for instance after a
                lost connection. Of several changes of one key, only the last may be reported. An
                expiry is reported as `KeyRemoval`, or not at all.

        Raises:
            UnavailableError: The connection is lost, detected within the deadline; or another store
                took the place of this one. Call again with the last revision.
        """
        how = WatchOptions(after=after, largest=largest, parts=parts)
        async with aclosing(self._watch(check_prefix(prefix), how)) as changes:
            async for change in changes:
                yield change

    @abstractmethod
    async def close(self) -> None:
        """Close the connection; every later call raises."""

    @abstractmethod
    async def _born(self, prefix: str) -> float: ...

    @abstractmethod
    async def _get(self, key: str) -> KeyValueEntry | None: ...

    @abstractmethod
    async def _list(self, prefix: str, largest: int) -> KeyListing: ...

    @abstractmethod
    async def _write(
        self, key: str, value: bytes, ttl: float | None, expected: int | None
    ) -> int | None:
        """Write a value if the key has the revision `expected` (0: it does not exist)."""

    @abstractmethod
    async def _remove(self, key: str, revision: int) -> bool: ...

    @abstractmethod
    def _watch(self, prefix: str, how: WatchOptions) -> AsyncGenerator[Change, None]: ...


def check_key(key: str) -> str:
    """Return the key; reject any other text.

    A key is one or more components, each after a `/`: ASCII letters, digits and `_ . @ = + : -`, no
    leading dot, at most 512 bytes in total. A key maps to an etcd key unchanged, and to a NATS
    subject by exchanging two characters.
    """
    if not is_key(key):
        raise InvalidInputError(f"{key[:80]!r} is not a key of the bus", where="bus")
    return key


def is_ours(entry: KeyValueEntry) -> bool:
    """Return whether a localpuppet client could have written an entry.

    Other clients of the server can write other keys and larger values below their prefixes. Stores
    hide such entries: a watcher of the prefix could only fail on them.
    """
    return len(entry.value) <= MAX_VALUE and is_key(entry.key)


def is_key(text: str) -> bool:
    return len(text) <= MAX_KEY and _KEY.fullmatch(text) is not None


def check_prefix(prefix: str) -> str:
    """Return the prefix: a key with a final `/`."""
    if not prefix.endswith("/"):
        raise InvalidInputError(f"{prefix[:80]!r} does not end with '/'", where="bus")
    check_key(prefix[:-1])
    return prefix


def check_value(value: bytes, ttl: float | None) -> bytes:
    """Return the value, unless it is too large, or the ttl not above 0 and below the limit."""
    if ttl is not None and not 0 < ttl <= MAX_VALUE_TTL:
        raise InvalidInputError(
            f"a ttl of {ttl:g} s; the bus takes more than 0 and at most {MAX_VALUE_TTL:.0f}",
            where="bus",
        )
    if len(value) > MAX_VALUE:
        raise InvalidInputError(
            f"a value of {len(value)} bytes; the bus takes {MAX_VALUE}", where="bus"
        )
    return value


def entries(change: Change) -> Sequence[KeyValueEntry]:
    """Return the entries that a change contains."""
    if isinstance(change, KeyListing):
        return change.entries
    return [change.entry] if isinstance(change, KeyWrite) else []


def revision_of(change: Change) -> int:
    """Return the revision up to which a watcher knows all changes; see `KeyValue.watch`."""
    return change.entry.revision if isinstance(change, KeyWrite) else change.revision
