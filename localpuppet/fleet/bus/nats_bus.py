"""`KeyValue` over JetStream's streams: one for transient keys, one for lasting keys.

The value of a key is the last message of its subject. A watch subscribes to the server's
*republish* of stored messages, then reads the stored state, and then follows; every republished
message has its sequence, so that each is reported once.

Republished messages are core NATS, which may lose some. If the connection is lost, the watch
raises. If not (a full buffer, a route between servers), the periodic look at the stored state finds
them. On some set-ups a client can forge such a message; it is only a hint: receivers check
signatures, and a forged sequence makes a watch list again.

nats-py's own key-value watch and its fetch wait 19 to 29 s after a crash of the server, and are not
used.

A subject keeps one message, so a write replaces value and ttl: a value with a ttl of an hour,
followed by one with a second, is gone after a second.
"""

import time
from collections.abc import AsyncGenerator, Mapping

from localpuppet.fleet.bus.jetstream import TRACE, NatsFeed, NatsStream, StreamState
from localpuppet.fleet.bus.jetstream_messages import (
    PASSING,
    PLACES,
    NatsMessage,
    SubjectRange,
    place_of,
    seconds,
    server_version,
)
from localpuppet.fleet.bus.key_value import (
    PART,
    Change,
    KeyListing,
    KeyRemoval,
    KeyValue,
    KeyValueEntry,
    KeyWrite,
    WatchOptions,
    end_of_step,
    in_time,
)
from localpuppet.fleet.bus.layout import PRESENCE
from localpuppet.fleet.bus.nats_link import NatsConnection
from localpuppet.fleet.bus.servers import Servers
from localpuppet.fleet.bus.store_calls import ListingEntries


async def open_nats(
    servers: Servers,
    *,
    timeout: float,
    password: str | None = None,
    inbox: str = "_INBOX",
) -> "NatsKeyValue":
    """Return the bus on NATS servers, or raise `UnavailableError`; a missing stream is created.

    `inbox` is the prefix of subjects for answers; permissions can name one for each node.
    """
    connection = NatsConnection(servers, timeout=timeout, password=password, inbox=inbox)
    # The other stream is created at its first use: not every client may do so.
    streams = {place: NatsStream(connection, servers, place) for place in PLACES}
    try:
        await streams[PASSING].open()
    except BaseException:
        await connection.close()
        raise
    return NatsKeyValue(streams)


def weakness(version: str) -> str | None:
    """Return a warning about a version of NATS; `None` for a safe version."""
    if server_version(version) >= (2, 10):
        return None
    return (
        f"nats-server {version} cannot write through to the disk and loses acknowledged messages"
        " when the power fails (2.10 and later can, with sync_interval: always)"
    )


class NatsKeyValue(KeyValue):
    """The bus in JetStream streams; the place of a key decides its stream."""

    def __init__(self, streams: Mapping[SubjectRange, NatsStream]) -> None:
        self._connection = streams[PASSING].connection
        super().__init__(streams[PASSING].timeout)
        self._streams = streams

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return warnings about this server for the operator."""
        problem = weakness(self._connection.version)
        return () if problem is None else (problem,)

    async def fullness(self) -> str:
        """See `KeyValue.fullness`: of the stream that has the nodes' presence."""
        return await self._of(PRESENCE).fullness()

    async def close(self) -> None:
        """Close the connection; see `KeyValue.close`."""
        await self._connection.close()

    def _of(self, key: str) -> NatsStream:
        return self._streams[place_of(key)]

    async def _born(self, prefix: str) -> float:
        created = (await self._of(prefix).state()).created
        try:
            return seconds(created)
        except ValueError as error:
            raise self._connection.without_jetstream() from error

    async def _get(self, key: str) -> KeyValueEntry | None:
        message = await self._last(key)
        return message.entry if message is not None and self._alive(message) else None

    async def _list(self, prefix: str, largest: int) -> KeyListing:
        listing = await self._read(prefix, largest)
        if not listing.entries:
            # Any client may list keys. A client that may not read them must get an error, not
            # "none".
            await self._of(prefix).last(f"{prefix}none")
        return listing

    async def _write(
        self, key: str, value: bytes, ttl: float | None, expected: int | None
    ) -> int | None:
        if expected == 0:
            return await self._add(key, value, ttl)
        # The server compares sequences only, also those of removal markers and expired values.
        if expected is not None and not await self._has(key, expected):
            return None
        return await self._of(key).publish(key, value, ttl=ttl, expected=expected)

    async def _add(self, key: str, value: bytes, ttl: float | None) -> int | None:
        expected = 0
        deadline = end_of_step(self.timeout)
        while time.monotonic() < deadline:
            revision = await self._of(key).publish(key, value, ttl=ttl, expected=expected)
            if revision is not None:
                return revision
            # There is a message; it may be a removal marker, or have expired.
            message = await self._last(key)
            if message is not None and self._alive(message):
                return None
            expected = 0 if message is None else message.entry.revision
        raise self._connection.problem(f"{key} is written and removed continuously")

    async def _remove(self, key: str, revision: int) -> bool:
        if not await self._has(key, revision):
            return False
        marker = self._of(key).publish(key, b"", ttl=TRACE, expected=revision, removed=True)
        return await marker is not None

    async def _watch(self, prefix: str, how: WatchOptions) -> AsyncGenerator[Change, None]:
        stream, after = self._of(prefix), how.after
        seen = checked = after or 0
        async with NatsFeed(stream, prefix, largest=how.largest) as feed:
            state = await stream.state()
            created = state.created
            if after is None or not stream.remembers(after, state):
                async for change in self._listed(prefix, how):
                    yield change
                    seen = checked = _reached(change, seen)
                behind = False
            else:
                behind = True  # changes stored since then are older than those received by now
            feed.check()
            reported: set[int] = set()
            while True:
                received = None if behind else await _next(feed, checked)
                behind = False
                stored = None if received else await self._state_of(prefix, created, checked)
                upto = checked if stored is None else stored.last
                async for message in self._news(prefix, received, how, checked, upto):
                    at = message.entry.revision
                    if at <= checked or at in reported:
                        continue
                    # Either a message came late, and its change must be reported in order, or a
                    # seemingly newer one was forged. The stored state decides, also about the
                    # current position.
                    if at < seen:
                        async for change in self._listed(prefix, how):
                            yield change
                            seen = upto = _reached(change, seen)
                        break
                    reported.add(at)
                    seen = at
                    news = self._change(message)
                    if news is not None:
                        yield news
                if upto > checked:
                    checked = upto
                    seen = max(seen, upto)
                    reported = {at for at in reported if at > checked}

    async def _state_of(self, prefix: str, created: str, reached: int) -> StreamState:
        """Return the state of the stream, if it is still the one that had reached a sequence."""
        state = await self._of(prefix).state()
        if state.created != created or state.last < reached:
            raise self._connection.problem("its stream was replaced")
        return state

    async def _news(
        self, prefix: str, received: NatsMessage | None, how: WatchOptions, checked: int, upto: int
    ) -> AsyncGenerator[NatsMessage, None]:
        """Yield the received message, or else the messages stored after `checked`."""
        if received is not None:
            yield received
        elif upto > checked:
            async for message in self._of(prefix).read(prefix, largest=how.largest, after=checked):
                yield message

    def _change(self, message: NatsMessage) -> Change | None:
        if message.removed:
            return KeyRemoval(key=message.entry.key, revision=message.entry.revision)
        return KeyWrite(entry=message.entry) if self._alive(message) else None

    async def _last(self, key: str) -> NatsMessage | None:
        message = await self._of(key).last(key)
        if message is not None and self._of(key).needs_time(message):
            await self._of(key).ask_time(key)
        return message

    async def _has(self, key: str, revision: int) -> bool:
        entry = await self._get(key)
        return entry is not None and entry.revision == revision

    async def _listed(self, prefix: str, how: WatchOptions) -> AsyncGenerator[Change, None]:
        """Yield a listing, or its parts; the revision of the last part applies to all.

        A key that is removed meanwhile may be in an earlier part: `KeyRemoval` follows for it.
        """
        if not how.parts:
            yield await self._read(prefix, how.largest)
            return
        state = await self._of(prefix).state(prefix)
        part: list[KeyValueEntry] = []
        gone: list[KeyRemoval] = []
        size, last = 0, state.last
        async for message in self._of(prefix).below(prefix, state, largest=how.largest):
            last = max(last, message.entry.revision)
            if self._alive(message):
                part.append(message.entry)
                size += len(message.entry.value)
            elif message.removed and message.entry.revision > state.last:
                gone.append(KeyRemoval(key=message.entry.key, revision=message.entry.revision))
            if size >= PART:
                yield KeyListing(entries=tuple(part), revision=last, more=True)
                part, size = [], 0
        yield KeyListing(entries=tuple(part), revision=last)
        for change in gone:
            yield change

    @in_time
    async def _read(self, prefix: str, largest: int) -> KeyListing:
        state = await self._of(prefix).state(prefix)
        listed = ListingEntries(prefix, self._connection.where)
        newest: dict[str, NatsMessage] = {}  # a key may have been replaced or removed meanwhile
        async for message in self._of(prefix).below(prefix, state, largest=largest):
            listed.add((message.entry,))
            newest[message.entry.key] = message
        entries = sorted(
            (known.entry for known in newest.values() if self._alive(known)),
            key=lambda entry: entry.key,
        )
        last = max((entry.revision for entry in listed.entries), default=0)
        return KeyListing(entries=tuple(entries), revision=max(state.last, last))

    def _alive(self, message: NatsMessage) -> bool:
        return self._of(message.entry.key).alive(message)


async def _next(feed: NatsFeed, checked: int) -> NatsMessage | None:
    """Return the next message; `None` if the watch must read the stored state.

    It must for a sequence that is not new, too: it may be that of another stream.
    """
    received = await feed.next()
    known = received is not None and received.entry.revision <= checked
    return None if known and feed.idle else received


def _reached(change: Change, seen: int) -> int:
    """Return a watcher's position after a listing; removals that follow it are older."""
    return change.revision if isinstance(change, KeyListing) else seen
