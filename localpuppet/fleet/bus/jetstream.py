"""A JetStream stream of the bus, whose last message of a subject counts, and its feed.

The server keeps the marker of a removal for `TRACE` seconds. If the stream reached a sequence
recently, everything written after it is younger, and all its markers still exist.

Reading many keys takes a consumer for this one read. It is created on a subject that names the
filter, so that permissions can restrict what a client reads.
"""

import asyncio
import math
import os
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.text import one_line
from localpuppet.base.value import Value
from localpuppet.fleet.bus import jetstream_messages, nats_link
from localpuppet.fleet.bus.bus_limits import MAX_NATS_KEYS
from localpuppet.fleet.bus.jetstream_messages import (
    BATCH,
    CAREFUL,
    JetStream,
    NatsMessage,
    ServerClock,
    SubjectRange,
    fetched,
    key_of,
    packed,
    seconds,
    server_version,
    subject_of,
    subjects_below,
    unpacked,
)
from localpuppet.fleet.bus.key_value import (
    ROOM,
    RefusedError,
    end_of_step,
    in_time,
    is_key,
    is_ours,
    parse_revision,
)
from localpuppet.fleet.bus.servers import Servers
from localpuppet.fleet.bus.store_calls import Backoff

# Seconds that the server keeps the marker of a removal, and that this module counts on.
TRACE = 3600
COUNTED = TRACE / 2


class StreamState(Value):
    """The state of a stream; its keys below a prefix are `None` if they were not asked for."""

    last: int
    created: str
    keys: tuple[str, ...] | None


class SequenceHistory:
    """Records when the stream reached which sequences."""

    def __init__(self) -> None:
        self._created = ""
        self._marks: deque[tuple[float, int]] = deque()

    def reached(self, state: StreamState, began: float) -> None:
        """Record the state of the stream at a moment, in monotonic seconds."""
        if state.created != self._created:  # another stream: earlier marks are void
            self._created = state.created
            self._marks.clear()
        if not self._marks or began - self._marks[-1][0] > COUNTED / 60:
            self._marks.append((began, state.last))
        while began - self._marks[0][0] > COUNTED:
            self._marks.popleft()

    def reaches(self, after: int, state: StreamState) -> bool:
        """Return whether the markers of all removals after a sequence still exist."""
        return after <= state.last and any(
            at <= after and time.monotonic() - began < COUNTED for began, at in self._marks
        )


# Up to this number, keys are read one by one.
FEW = 8
# Maximum number of expired messages that one read removes, if the server does not.
SWEEP = 100
# Seconds for which a server may still remove the files of a stream whose deletion it has reported:
# a stream that is created meanwhile finds old messages, or loses its own files.
SETTLE = 2.0

_WRONG_LAST_SEQUENCE = 10071
_NO_STREAM = 10059


class NatsStream:
    def __init__(
        self, connection: nats_link.NatsConnection, servers: Servers, place: SubjectRange
    ) -> None:
        self.connection = connection
        self._api = JetStream(connection)
        self._name = jetstream_messages.stream_name(servers, place)
        self._place = place
        self._servers = servers
        self._prepared: nats_link.NatsLink | None = None
        self._heard: nats_link.NatsLink | None = None
        self._settled = 0.0  # monotonic seconds; a deleted stream is not created before
        self._server_ttl = False
        self._replicated = False
        self._clock = ServerClock()
        self._memory = SequenceHistory()

    @property
    def timeout(self) -> float:
        """Return the deadline of each call in seconds."""
        return self.connection.timeout

    def live(self, keys: str) -> str:
        """Return the subject for republished messages below a prefix of keys."""
        return subjects_below(self._place.live, keys)

    @in_time
    async def open(self) -> None:
        """Connect, and create or update the stream."""
        await self.prepare()

    async def prepare(self) -> nats_link.NatsLink:
        """Return a connection with a correctly configured stream."""
        link = await self.connection.link()
        if link is not self._prepared:
            await self._prepare(link)
        return link

    async def _hear(self, link: nats_link.NatsLink) -> None:
        """Look again when the server reports that a stream was created or deleted.

        A server that does not permit this leaves it to the periodic looks of watches.
        """

        def changed(report: Msg) -> None:
            self._prepared = None
            if report.subject == jetstream_messages.advisories(self._name, "DELETED"):
                self._settled = time.monotonic() + SETTLE
            link.tell()

        await link.subscribe(jetstream_messages.advisories(self._name), changed)
        self._heard = link

    @in_time
    async def _prepare(self, link: nats_link.NatsLink) -> None:
        if self._heard is not link:
            await self._hear(link)
        answer = await self._api.call(f"STREAM.INFO.{self._name}", {}, accept=(_NO_STREAM,))
        version = server_version(self.connection.version)
        wanted = jetstream_messages.wanted_stream(self._servers, self._place, version=version)
        if answer is None:
            try:
                await asyncio.sleep(self._settled - time.monotonic())
                answer = await self._api.call(f"STREAM.CREATE.{self._name}", wanted)
            except RefusedError as error:  # it is not known whether it refuses anything else
                raise self.connection.problem(
                    f"has no stream {self._name}", "connect once as a user that may create it"
                ) from error
        config = (answer or {}).get("config", {})
        changed = jetstream_messages.mended_stream(config, wanted)
        if changed is not None:
            with suppress(UnavailableError):  # this node may not; another one may have done it
                updated = await self._api.call(f"STREAM.UPDATE.{self._name}", changed)
                config = (updated or {}).get("config", config)
        if not config.get("allow_direct") or not config.get("republish"):
            raise self.connection.problem(
                f"its stream {self._name} lacks allow_direct or republish",
                "connect once as a user that may update the stream",
            )
        self._server_ttl = bool(config.get("allow_msg_ttl"))
        self._replicated = config.get("num_replicas") != 1
        self._prepared = link

    @in_time
    async def state(self, keys: str | None = None) -> StreamState:
        """Return the state of the stream, with its keys below a prefix, if given.

        A crowded stream tells no keys: any member can write more than an answer may have.
        """
        await self.prepare()
        began = time.monotonic()
        answer = await self._api.call(f"STREAM.INFO.{self._name}", {}) or {}
        has_keys = bool(keys) and answer.get("state", {}).get("num_subjects", 0) <= MAX_NATS_KEYS
        if keys and has_keys:
            asked = {"subjects_filter": subjects_below(self._place.kept, keys)}
            answer = await self._api.call(f"STREAM.INFO.{self._name}", asked) or {}
        fields = answer.get("state", {})
        listed = (key_of(self._place.kept, subject) for subject in fields.get("subjects") or ())
        state = StreamState(
            last=int(fields.get("last_seq", 0)),
            created=str(answer.get("created", "")),
            keys=tuple(filter(is_key, listed)) if has_keys else None,
        )
        self._memory.reached(state, began)
        return state

    @in_time
    async def fullness(self) -> str:
        """Return why the stream has no room, by its limit; empty if it may have."""
        await self.prepare()
        info = await self._api.call(f"STREAM.INFO.{self._name}", {}) or {}
        limit = int(info.get("config", {}).get("max_bytes", -1))
        used = int(info.get("state", {}).get("bytes", 0))
        if limit <= 0 or used + ROOM <= limit:
            return ""
        return f"the stream {self._name} is full: {used} of {limit} bytes"

    def remembers(self, after: int, state: StreamState) -> bool:
        """Return whether the markers of all removals after a sequence still exist."""
        return self._memory.reaches(after, state)

    async def last(self, key: str) -> NatsMessage | None:
        """Return the last message of a key, also a removal marker or an expired one."""
        await self.prepare()
        subject = subject_of(self._place.kept, key)
        api = self.connection.api
        answer = await self.connection.request(f"{api}.DIRECT.GET.{self._name}.{subject}")
        headers = answer.headers or {}
        # A stored message may have a header of that name, but then it has a sequence, too.
        status = None if "Nats-Sequence" in headers else headers.get("Status")
        if status == "404":
            return None
        if status is not None:
            problem = one_line(f"{status} {headers.get('Description', '')}")
            raise self.connection.problem(f"cannot be read: {problem}")
        try:
            stored = seconds(headers["Nats-Time-Stamp"])
            return unpacked(
                key, answer.data, revision=parse_revision(headers["Nats-Sequence"]), stored=stored
            )
        except (KeyError, ValueError) as error:
            raise self.connection.problem("does not answer as NATS does") from error

    async def publish(
        self,
        key: str,
        value: bytes,
        *,
        ttl: float | None,
        expected: int | None,
        removed: bool = False,
    ) -> int | None:
        """Write a message, or a removal's marker, for `ttl` seconds; return its sequence.

        If the sequence of the key's last message is not `expected` (0 for none), it returns `None`.
        """
        await self.prepare()
        headers = {}
        if ttl is not None and self._server_ttl:
            headers["Nats-TTL"] = f"{max(1, math.ceil(ttl))}s"
        if expected is not None:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(expected)
        subject, body = subject_of(self._place.kept, key), packed(value, ttl=ttl, removed=removed)
        answer = await self.connection.request(subject, body, headers=headers)
        result = self._api.result(answer, (_WRONG_LAST_SEQUENCE,))
        if result is None:
            return None
        if result.get("stream") != self._name:
            raise self.connection.problem(
                f"keeps {self._place.kept}.> in the stream {one_line(str(result.get('stream')))}",
                f"set stream to it, or remove it: {self._name} is the one that is read",
            )
        if "seq" not in result:
            raise self.connection.without_jetstream()
        return int(result["seq"])

    async def below(
        self, keys: str, state: StreamState, *, largest: int
    ) -> AsyncGenerator[NatsMessage, None]:
        """Yield the last messages below the prefix that `state` was requested for; see `read`."""
        # A consumer costs the server ten times as much as a plain request, and most agents find few
        # or no messages. With replicas, one that lags may answer a plain request.
        known = state.keys
        if known is not None and len(known) <= FEW and not self._replicated:
            answers = await asyncio.gather(*(self.last(key) for key in known))
            messages = [
                answer for answer in answers if answer is not None and is_ours(answer.entry)
            ]
            if all(message.entry.revision <= state.last for message in messages):
                for message in messages:
                    if self.needs_time(message):
                        await self.ask_time(message.entry.key)
                await self._sweep(self._dead(messages))
                for message in sorted(messages, key=lambda item: item.entry.revision):
                    if len(message.entry.value) <= largest:
                        yield message
                return
        async for message in self.read(keys, largest=largest):
            yield message

    async def read(
        self, keys: str, *, largest: int, after: int | None = None
    ) -> AsyncGenerator[NatsMessage, None]:
        """Yield the last messages below a prefix of keys after a sequence, in order.

        Larger values than `largest` bytes are skipped. If the server stalls, reading restarts from
        the first message: never a shorter list.
        """
        subject = subjects_below(self._place.kept, keys)
        policy = jetstream_messages.deliver_policy(after)
        backoff = Backoff()
        deadline = end_of_step(self.timeout)
        dead: list[int] = []
        size, reached = BATCH, 0
        while True:
            try:
                async for message in self._once(subject, policy, size):
                    dead += self._dead([message])[: SWEEP - len(dead)]
                    if is_ours(message.entry) and len(message.entry.value) <= largest:
                        yield message
                    if message.entry.revision > reached:  # progress: extend the deadline
                        reached = message.entry.revision
                        deadline = end_of_step(self.timeout)
            except nats_link.FloodError:  # some of its values are large
                if size == CAREFUL:
                    raise
                size = CAREFUL
            except nats_link.StalledError as error:  # another consumer counts again
                pause = backoff.pause()
                if time.monotonic() + pause < deadline:
                    await asyncio.sleep(pause)
                    continue
                raise self.connection.problem(f"did not send all below {keys}") from error
            else:
                await self._sweep(dead)
                return

    async def _once(
        self, subject: str, policy: dict[str, object], size: int
    ) -> AsyncGenerator[NatsMessage, None]:
        async with self._consumer(subject, policy) as (name, pending):
            if pending:
                async for part in self._api.fetched(self._name, name, size=size):
                    yield fetched(key_of(self._place.kept, part.subject), part)

    async def sweep(self, keys: str) -> None:
        """Remove some expired messages below a prefix, if the server does not."""
        if not self._server_ttl:
            async for _ in self.read(keys, largest=0):
                pass

    async def ask_time(self, key: str) -> None:
        """Learn the server's time by creating a consumer, the only way that 2.9 has."""
        if not self._clock.known:
            async with self._consumer(subject_of(self._place.kept, key), {"deliver_policy": "new"}):
                pass  # the answer has the time

    @asynccontextmanager
    async def _consumer(
        self, subject: str, policy: dict[str, object]
    ) -> AsyncGenerator[tuple[str, int], None]:
        """Yield the name of a new consumer for one read, and its number of pending messages."""
        await self.prepare()
        name = f"lp-{os.urandom(8).hex()}"
        config = {
            **policy,
            "name": name,
            "ack_policy": "none",
            "filter_subject": subject,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": int(self.connection.timeout * 1e9),
        }
        answer = await self._api.call(
            f"CONSUMER.CREATE.{self._name}.{name}.{subject}",
            {"stream_name": self._name, "config": config},
        )
        self._clock.learn(str((answer or {}).get("created", "")))
        try:
            yield name, int((answer or {}).get("num_pending", 0))
        finally:
            with suppress(UnavailableError):  # the server removes an unused consumer
                await self._api.call(f"CONSUMER.DELETE.{self._name}.{name}", {}, accept=(10014,))

    def parse_message(self, message: Msg) -> NatsMessage:
        """Return a republished message; raise ValueError if it is invalid."""
        headers = message.headers or {}
        try:
            subject, revision = headers["Nats-Subject"], parse_revision(headers["Nats-Sequence"])
        except KeyError as error:
            raise ValueError("no message of the stream") from error
        # It was stored just now: whatever its ttl, it has not expired.
        key = key_of(self._place.kept, subject)
        received = unpacked(key, message.data, revision=revision, stored=math.inf)
        if is_ours(received.entry):
            return received
        raise ValueError("no key of the bus")

    def alive(self, message: NatsMessage) -> bool:
        """Return whether a message is a value that has not certainly expired."""
        if message.removed:
            return False
        return message.expires is None or message.expires > self._clock.passed()

    def needs_time(self, message: NatsMessage) -> bool:
        """Return whether only the server's time can decide if a message has expired."""
        return message.expires is not None and not self._clock.known and not self._server_ttl

    def _dead(self, messages: Iterable[NatsMessage]) -> list[int]:
        """Return the sequences of expired messages, if the server does not remove them."""
        if self._server_ttl:
            return []
        passed = self._clock.passed()
        return [
            message.entry.revision
            for message in messages
            if message.expires is not None and message.expires < passed
        ]

    async def _sweep(self, dead: Sequence[int]) -> None:
        """Remove expired messages by their sequences, so that no newer ones are affected."""
        for revision in dead[:SWEEP]:
            # Leave time for the read itself; the next reader continues the sweep.
            if end_of_step(self.timeout) - time.monotonic() < self.timeout / 2:
                return
            try:
                await self._api.call(
                    f"STREAM.MSG.DELETE.{self._name}", {"seq": revision, "no_erase": True}
                )
            except UnavailableError:
                return  # this node may not; another one may


# Number of looks after which a watch sweeps expired values, if the server does not.
FEED_SWEEP = 60
# Seconds between two looks of a watch at the stored state: core NATS does not report lost messages.
# One timer for all watchers: it would be rearmed for each message otherwise.
LOOK = 60.0
# Limits of the queue of a watch; messages beyond them are read when there is room again.
BEHIND = 1000
BEHIND_BYTES = 4 * 1024 * 1024


class NatsFeed:
    """The messages republished below a prefix, between `async with` and its end."""

    def __init__(self, stream: NatsStream, prefix: str, *, largest: int) -> None:
        self._stream = stream
        self._prefix = prefix
        self._largest = largest
        self._waiting = 0
        self._queue: asyncio.Queue[NatsMessage | None] = asyncio.Queue()
        # Whether the queue ends with a look, which finds all messages until then; and whether it
        # takes no messages for that reason.
        self._ends_with_look = self._full = False
        self._looks = 0
        self._timer: asyncio.TimerHandle
        self._link: nats_link.NatsLink
        self._subscription: Subscription

    async def __aenter__(self) -> "NatsFeed":
        self._link = await self._stream.prepare()
        self._subscription = await self._link.subscribe(
            self._stream.live(self._prefix), self._on_message
        )
        self._link.listeners.add(self.look_now)
        self._timer = asyncio.get_running_loop().call_later(LOOK, self._look)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._timer.cancel()
        self._link.listeners.discard(self.look_now)
        await self._link.unsubscribe(self._subscription)

    @property
    def idle(self) -> bool:
        """Return whether no message waits."""
        return self._queue.empty()

    def check(self) -> None:
        """Check the subscription; conclusive after the server has answered a later request."""
        self._link.check(self._subscription)

    def look_now(self) -> None:
        """Make `next` return `None`, so that the watch reads the stored state."""
        if not self._ends_with_look:
            self._queue.put_nowait(None)
        self._ends_with_look = True

    async def next(self) -> NatsMessage | None:
        """Return the next message; `None` if the watch must read the stored state."""
        self.check()
        message = await self._queue.get()
        if self._queue.empty():
            self._full = self._ends_with_look = False
        if message is None:
            self.check()
            self._looks += 1
            if self._looks % FEED_SWEEP == 0:
                await self._stream.sweep(self._prefix)
        else:
            self._waiting -= len(message.entry.value)
        return message

    def _look(self) -> None:
        self.look_now()
        self._timer = asyncio.get_running_loop().call_later(LOOK, self._look)

    def _on_message(self, message: Msg) -> None:
        if self._full:
            return  # the look at the end of the queue finds it: it is stored already
        received: NatsMessage | None = None
        size = 0
        # What is no message of the stream, or of another place: the stored state decides.
        with suppress(ValueError):
            received = self._stream.parse_message(message)
            size = len(received.entry.value)
        if received is None or not received.entry.key.startswith(self._prefix):
            self.look_now()
            return
        if size > self._largest:
            return
        self._full = self._queue.qsize() >= BEHIND or self._waiting + size > BEHIND_BYTES
        self._ends_with_look = self._full
        self._waiting += 0 if self._full else size
        self._queue.put_nowait(None if self._full else received)
