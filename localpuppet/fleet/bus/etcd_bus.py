"""`KeyValue` over version 3 of etcd's API.

Each lease costs the cluster a write through its log and to its disk; a node that replies and
publishes its status would need several within seconds.

- A value stays for at least its ttl, counted from the write. A lease lives longer by a spare time
  and is shared for less than that; `covers` says whether it still covers a slow write. The clocks
  of the server and of this module count time while the machine sleeps.
- After a failed write, its lease is not used again: the server may no longer know it.

A ttl is a lease, shared by writes of the same moments (`SharedLeases`). Conditions are
transactions on the key's modification revision. A watch is a stream that starts after a revision.

- Reads are linearizable: a cluster without a quorum raises, and an isolated member never answers
  from its own state.
- A listing of several pages is read at one revision.
- A silent watch asks the server for progress, and raises if there is no answer.

When a watch resumes, etcd replays every write since then, also of keys that have expired or were
removed. The replay is therefore compared with the current state: a write that is not the newest
state of its key is skipped.
"""

import asyncio
import math
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import TypeVar

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.text import one_line
from localpuppet.base.machine.process_table import seconds_since_boot
from localpuppet.base.value import Value
from localpuppet.fleet.bus import etcd_calls, key_value
from localpuppet.fleet.bus import etcd_messages as messages
from localpuppet.fleet.bus.layout import STORE
from localpuppet.fleet.bus.servers import Servers
from localpuppet.fleet.bus.store_calls import ListingEntries

# Seconds that a lease lives beyond its ttl: the ttl divided by PART, from LEAST to MOST.
SHARED_LEASES_PART, LEAST, MOST = 10, 1, 6
# Seconds of the spare time that are reserved for the writes themselves.
FOR_WRITES = 0.75


class EtcdLease(Value):
    """A lease of the server, 0 for no expiry; a write that ends by `covers_until` has its ttl."""

    id: int
    covers_until: float


@dataclass(slots=True, eq=False)
class SharedLeases:
    """The leases of one client; `grant` requests one of some seconds, and returns its id."""

    grant: Callable[[int], Awaitable[int]]
    _: KW_ONLY
    monotonic: Callable[[], float] = seconds_since_boot
    _shared: dict[int, tuple[float, asyncio.Task[EtcdLease]]] = field(
        default_factory=dict, init=False
    )

    async def of(self, ttl: float | None) -> EtcdLease:
        """Return the lease for a value that stays for `ttl` seconds; `None` for no expiry."""
        if ttl is None:
            return EtcdLease(id=0, covers_until=math.inf)
        seconds = math.ceil(ttl)
        now = self.monotonic()
        until, task = self._shared.get(seconds, (-math.inf, None))
        if task is None or now > until or _failed(task):
            spare = min(MOST, max(LEAST, seconds // SHARED_LEASES_PART))
            task = asyncio.create_task(self._new(seconds + spare, now + spare))
            task.add_done_callback(_failed)  # all its writers may have been cancelled
            self._shared[seconds] = now + spare - FOR_WRITES, task
        # A cancelled writer must not cancel the lease for others.
        return await asyncio.shield(task)

    def covers(self, lease: EtcdLease) -> bool:
        """Return whether a write that ends now stays for its ttl."""
        return self.monotonic() <= lease.covers_until

    def forget(self, lease: EtcdLease) -> None:
        """Stop sharing a lease after a write with it failed."""
        for seconds, (_, task) in list(self._shared.items()):
            if task.done() and not _failed(task) and task.result() == lease:
                del self._shared[seconds]

    def close(self) -> None:
        """Cancel pending requests."""
        for _, task in self._shared.values():
            task.cancel()

    async def _new(self, seconds: int, covers_until: float) -> EtcdLease:
        return EtcdLease(id=await self.grant(seconds), covers_until=covers_until)


def _failed(task: "asyncio.Task[EtcdLease]") -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


_Answer = TypeVar("_Answer")
_TIME = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")

# Target size of one answer, far below the limit: values on the next page may be larger.
PAGE_BYTES = key_value.PART
FIRST_PAGE = 32
LARGEST_PAGE = 2000
# Divisor of the number of entries after an answer that was too large.
SMALLER = 8
# Maximum number of changed keys that a resuming watcher compares; with more, it lists again.
MAX_KNOWN = 50_000
# First releases in which users cannot read every key through nested transactions and watches.
_SAFE = {(3, 5): 33, (3, 6): 14}


async def open_etcd(
    servers: Servers, *, timeout: float, password: str | None = None
) -> "EtcdKeyValue":
    """Return the bus on an etcd cluster, or raise `UnavailableError`."""
    connection = etcd_calls.EtcdConnection(servers, timeout=timeout, password=password)
    try:
        answer = await connection.call(messages.STATUS, b"")
        version: str | None = messages.read_version(answer)
    except key_value.RefusedError:  # from 3.5.28 on, only etcd's root may ask
        version = None
    except ValueError as error:
        connection.close()
        raise UnavailableError("is not an etcd server", where=connection.where) from error
    except BaseException:
        connection.close()
        raise
    return EtcdKeyValue(connection, version=version)


def weakness(version: str | None) -> str | None:
    """Return a warning about a version of etcd; `None` for a safe or an unknown version."""
    fix = ", ".join(f"{a}.{b}.{patch}" for (a, b), patch in _SAFE.items())
    if version is None:
        return (
            f"etcd shows its version to etcd's root only: make sure that it is one of {fix} or"
            " later, which keep nodes apart"
        )
    parts = version.split("-")[0].split(".")
    if len(parts) != 3 or not all(part.isdecimal() and len(part) < 10 for part in parts):
        return f"etcd reports the version {one_line(version)!r}, which is unknown"
    major, minor, patch = (int(part) for part in parts)
    safe = _SAFE.get((major, minor))
    if (patch >= safe) if safe is not None else (major, minor) > max(_SAFE):
        return None
    return (
        f"etcd {version} lets any of its users read every key, and in older releases write it,"
        f" through nested transactions and watches (repaired in {fix}): its roles do not keep nodes"
        f" apart"
    )


class EtcdKeyValue(key_value.KeyValue):
    """The bus on an etcd cluster; `version` is `None` if the server reports none to this user."""

    def __init__(self, connection: etcd_calls.EtcdConnection, *, version: str | None) -> None:
        super().__init__(connection.timeout)
        self._connection = connection
        self._cluster = 0
        problem = weakness(version)
        self._warnings = () if problem is None else (problem,)
        self._watches: set[asyncio.Task[None]] = set()
        self._leases = SharedLeases(self._grant)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return warnings about this server for the operator."""
        return self._warnings

    async def _born(self, prefix: str) -> float:
        # etcd has no times, and a cluster that lost its data has the same id: a key has the time.
        try:
            entry = await self._get(STORE)
            if entry is None:
                await self._write(STORE, f"{time.time():.6f}".encode(), None, 0)
                entry = await self._get(STORE)
        except key_value.RefusedError:
            return 0.0  # an administrator has not yet run the new script of the roster
        if entry is None or not (entry.value.isascii() and _TIME.fullmatch(entry.value.decode())):
            raise UnavailableError("is not a time", where=STORE, hint="remove this key")
        return float(entry.value)

    async def fullness(self) -> str:
        """See `KeyValue.fullness`; unknown if etcd shows its status to its root only."""
        with suppress(key_value.RefusedError):
            answer = await self._connection.call(messages.STATUS, b"")
            if b"alarm:NOSPACE" in answer:
                return "etcd is full (alarm NOSPACE)"
        return ""

    async def _get(self, key: str) -> key_value.KeyValueEntry | None:
        page = await self._page(messages.range_request(key), limit=1)
        return page.entries[0] if page.entries else None

    async def _list(self, prefix: str, largest: int) -> key_value.KeyListing:
        deadline = key_value.end_of_step(self.timeout)
        while True:
            listed = ListingEntries(prefix, self._connection.where)
            try:
                async for part in self._parts(prefix, largest):
                    listed.add(part.entries)
                    if part.more and time.monotonic() > deadline:
                        raise UnavailableError(
                            f"did not send all below {prefix} within {self.timeout:g} s",
                            where=self._connection.where,
                        )
            except etcd_calls.CompactedError:  # compacted between two pages: start again
                continue
            return replace(part, entries=tuple(listed.entries))

    async def _write(
        self, key: str, value: bytes, ttl: float | None, expected: int | None
    ) -> int | None:
        try:
            return await self._written(key, value, await self._leases.of(ttl), expected)
        except (etcd_calls.LeaseLostError, key_value.RefusedError):
            # Any user may revoke a lease before a write uses it. A write with a lease counts as a
            # write to all its keys: a user who lost the right to one of them is refused the others.
            if ttl is None:
                raise
        return await self._written(key, value, await self._leases.of(ttl), expected)

    async def _written(
        self, key: str, value: bytes, lease: EtcdLease, expected: int | None
    ) -> int | None:
        written: int | None
        try:
            if expected is None:
                request = messages.put_request(key, value, lease.id)
                written = await self._call(messages.PUT, request, messages.read_revision)
            else:
                request = messages.put_if_request(key, value, lease.id, expected)
                written = await self._call(messages.TXN, request, messages.read_transaction)
            if written is not None:
                await self._assure(lease)
        except UnavailableError:
            self._leases.forget(lease)
            raise
        return written

    async def _remove(self, key: str, revision: int) -> bool:
        request = messages.delete_if_request(key, revision)
        removed = await self._call(messages.TXN, request, messages.read_transaction)
        return removed is not None

    async def _watch(
        self, prefix: str, how: key_value.WatchOptions
    ) -> AsyncGenerator[key_value.Change, None]:
        after = how.after
        while True:
            known = None if after is None else await self._since(prefix, after)
            if known is None:
                async with aclosing(self._listed(prefix, how)) as listings:
                    async for listing in listings:
                        yield listing
                known = etcd_calls.KnownKeys(
                    after=listing.revision, upto=listing.revision, revisions={}
                )
            async with etcd_calls.EtcdWatch(
                self._connection, prefix, start=known.after + 1, largest=how.largest
            ) as stream:
                self._watches.add(stream.task)
                try:
                    async for event in stream.events():
                        entry = event.entry
                        is_reported = entry.revision > known.upto or known.tells(event)
                        if not is_reported or not key_value.is_ours(entry):
                            continue
                        if event.removed:
                            yield key_value.KeyRemoval(key=entry.key, revision=entry.revision)
                        else:
                            yield key_value.KeyWrite(entry=entry)
                except etcd_calls.CompactedError:
                    after = None
                finally:
                    self._watches.discard(stream.task)

    async def close(self) -> None:
        """Close the connection; see `KeyValue.close`."""
        self._connection.close()
        self._leases.close()
        for task in self._watches:
            task.cancel()

    @key_value.in_time
    async def _since(self, prefix: str, after: int) -> "etcd_calls.KnownKeys | None":
        """Return the current state of keys written after a revision; `None` to list again."""
        revisions: dict[str, int] = {}
        try:
            async for page in self._pages(prefix, changed_since=after + 1, keys_only=True):
                if after > page.revision or page.cluster != (self._cluster or page.cluster):
                    return None  # a server that lost data, or another cluster
                if len(revisions) > MAX_KNOWN:
                    return None
                self._cluster = page.cluster
                revisions.update((entry.key, entry.revision) for entry in page.entries)
                upto = page.revision
        except etcd_calls.CompactedError:
            return None
        return etcd_calls.KnownKeys(after=after, upto=upto, revisions=revisions)

    async def _listed(
        self, prefix: str, how: key_value.WatchOptions
    ) -> AsyncGenerator[key_value.KeyListing, None]:
        """Yield a listing, or its parts; start again if the revision is compacted meanwhile."""
        while True:
            try:
                if how.parts:
                    async for part in self._parts(prefix, how.largest):
                        yield part
                else:
                    yield await self.list(prefix, largest=how.largest)
            except etcd_calls.CompactedError:
                continue
            return

    async def _parts(self, prefix: str, largest: int) -> AsyncGenerator[key_value.KeyListing, None]:
        """Yield all entries below a prefix at one revision, in parts."""
        revision = 0
        async for page in self._pages(prefix):
            revision = revision or page.revision
            self._cluster = page.cluster
            entries = (
                entry
                for entry in page.entries
                if key_value.is_ours(entry) and len(entry.value) <= largest
            )
            yield key_value.KeyListing(entries=tuple(entries), revision=revision, more=page.more)

    async def _pages(
        self, prefix: str, *, changed_since: int = 0, keys_only: bool = False
    ) -> AsyncGenerator[messages.RangePage, None]:
        """Yield all entries below a prefix at one revision, in answers of limited size."""
        start, revision, limit = prefix, 0, FIRST_PAGE
        more = True
        while more:
            request = messages.range_request(
                start,
                end=messages.beyond(prefix),
                limit=limit,
                revision=revision,
                changed_since=changed_since,
                keys_only=keys_only,
            )
            try:
                page = await self._page(request, limit=limit)
            except etcd_calls.TooLargeError:  # larger values than on the page before
                if limit == 1:
                    raise
                limit = max(1, limit // SMALLER)
                continue
            yield page
            # The header has the newest revision, not the one that a later page was read at.
            revision = revision or page.revision
            more = page.more
            if page.entries:
                start = page.entries[-1].key + "\0"
                size = sum(len(entry.key) + len(entry.value) for entry in page.entries)
                average = max(1, size // len(page.entries))
                limit = max(1, min(LARGEST_PAGE, PAGE_BYTES // average))

    async def _page(self, request: bytes, *, limit: int) -> messages.RangePage:
        read = partial(messages.read_page, limit=limit)
        return await self._call(messages.RANGE, request, read)

    async def _grant(self, seconds: int) -> int:
        request = messages.grant_request(seconds)
        return await self._call(messages.GRANT, request, messages.read_lease)

    async def _assure(self, lease: EtcdLease) -> None:
        """Renew the lease of a slow write, so that the ttl counts from the write."""
        if self._leases.covers(lease):
            return
        request = messages.keep_alive_request(lease.id)
        left = await self._call(messages.KEEP_ALIVE, request, messages.read_ttl)
        if left <= 0:
            raise UnavailableError(
                "was so slow that the value expired before it was stored",
                where=self._connection.where,
            )

    async def _call(self, method: str, request: bytes, read: Callable[[bytes], _Answer]) -> _Answer:
        answer = await self._connection.call(method, request)
        try:
            return read(answer)
        except ValueError as error:
            raise UnavailableError(
                f"does not answer as etcd does: {error}", where=self._connection.where
            ) from error
