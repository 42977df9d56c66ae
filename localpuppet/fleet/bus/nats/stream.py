"""The one JetStream stream of the bus: a subject for each key, of which the last message counts.

Owns: publishing with conditions, reading what is there, and what time it is for the server. Refuses
to know: watches (`bus.nats.store`).

Reading many keys takes a consumer that lives for the one read and is removed after it: it is
created on a subject that names the filter, so that permissions can say who may read what.
"""

import asyncio
import math
import os
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.text import one_line
from localpuppet.fleet.bus.backoff import Backoff
from localpuppet.fleet.bus.deadline import end_of_step, in_time
from localpuppet.fleet.bus.key_value import is_key, is_ours, parse_revision
from localpuppet.fleet.bus.nats import stream_config
from localpuppet.fleet.bus.nats.api import BATCH, CAREFUL, JetStream
from localpuppet.fleet.bus.nats.connection import NatsConnection
from localpuppet.fleet.bus.nats.link import FloodError, Msg, NatsLink, StalledError
from localpuppet.fleet.bus.nats.memory import TRACE, Memory, StreamState
from localpuppet.fleet.bus.nats.message import (
    Message,
    ServerClock,
    fetched,
    packed,
    seconds,
    server_version,
    unpacked,
)
from localpuppet.fleet.bus.nats.subjects import Place, key_of, subject_of, subjects_below
from localpuppet.fleet.bus.servers import Servers

# So many keys are asked for one by one.
FEW = 8
# Dead messages that one read removes at most, where the server does not do that by itself.
SWEEP = 100

_WRONG_LAST_SEQUENCE = 10071
_NO_STREAM = 10059


class NatsStream:
    """The stream.

    Args:
        connection: To the server.
        servers: Says the stream's name, and how one that we make is to be.
        place: Which of the streams.
    """

    def __init__(self, connection: NatsConnection, servers: Servers, place: Place) -> None:
        self.connection = connection
        self._api = JetStream(connection)
        self._name = stream_config.stream_name(servers, place)
        self._place = place
        self._servers = servers
        self._prepared: NatsLink | None = None
        self._server_ttl = False
        self._replicated = False
        self._clock = ServerClock()
        self._memory = Memory()

    @property
    def timeout(self) -> float:
        """Return the deadline of each call in seconds."""
        return self.connection.timeout

    def live(self, keys: str) -> str:
        """Return the subject on which the server repeats what it stored below a prefix of keys."""
        return subjects_below(self._place.live, keys)

    @in_time
    async def open(self) -> None:
        """Connect, and see to it that the stream is there as it should be."""
        await self.prepare()

    async def prepare(self) -> NatsLink:
        """Return a connection on which the stream is there as it should be."""
        link = await self.connection.link()
        if link is not self._prepared:
            await self._prepare(link)
        return link

    @in_time
    async def _prepare(self, link: NatsLink) -> None:
        answer = await self._api.call(f"STREAM.INFO.{self._name}", {}, accept=(_NO_STREAM,))
        version = server_version(self.connection.version)
        wanted = stream_config.wanted_stream(self._servers, self._place, version=version)
        if answer is None:
            answer = await self._api.call(f"STREAM.CREATE.{self._name}", wanted)
        config = (answer or {}).get("config", {})
        changed = stream_config.mended_stream(config, wanted)
        if changed is not None:
            with suppress(UnavailableError):  # this node may not; another may have by now
                updated = await self._api.call(f"STREAM.UPDATE.{self._name}", changed)
                config = (updated or {}).get("config", config)
        if not config.get("allow_direct") or not config.get("republish"):
            raise self.connection.problem(
                f"its stream {self._name} lacks allow_direct or republish",
                "let a user who may update the stream connect once",
            )
        self._server_ttl = bool(config.get("allow_msg_ttl"))
        self._replicated = config.get("num_replicas") != 1
        self._prepared = link

    @in_time
    async def state(self, keys: str | None = None) -> StreamState:
        """Return where the stream is, and which keys it has below a prefix, if one is given."""
        await self.prepare()
        began = time.monotonic()
        asked = {"subjects_filter": subjects_below(self._place.kept, keys)} if keys else {}
        answer = await self._api.call(f"STREAM.INFO.{self._name}", asked) or {}
        found = answer.get("state", {})
        state = StreamState(
            last=int(found.get("last_seq", 0)),
            created=str(answer.get("created", "")),
            keys=tuple(
                key
                for subject in found.get("subjects") or ()
                if is_key(key := key_of(self._place.kept, subject))
            ),
        )
        self._memory.reached(state, began)
        return state

    def remembers(self, after: int, state: StreamState) -> bool:
        """Return whether all removals after a sequence still have their trace."""
        return self._memory.reaches(after, state)

    async def last(self, key: str) -> Message | None:
        """Return the last message of a key, also a trace or one that has expired."""
        await self.prepare()
        subject = subject_of(self._place.kept, key)
        api = self.connection.api
        answer = await self.connection.request(f"{api}.DIRECT.GET.{self._name}.{subject}")
        headers = answer.headers or {}
        # What is stored may have a header of that name, but then it has a sequence, too.
        status = None if "Nats-Sequence" in headers else headers.get("Status")
        if status == "404":
            return None
        if status is not None:
            said = one_line(f"{status} {headers.get('Description', '')}")
            raise self.connection.problem(f"cannot be read: {said}")
        try:
            stored = seconds(headers["Nats-Time-Stamp"])
            return unpacked(
                key, answer.data, revision=parse_revision(headers["Nats-Sequence"]), stored=stored
            )
        except (KeyError, ValueError) as error:
            raise self.connection.problem("does not answer as NATS does") from error

    async def publish(
        self, key: str, value: bytes, *, ttl: float | None = None, expected: int | None = None
    ) -> int | None:
        """Write a message; return its sequence.

        Args:
            key: Its key.
            value: Its bytes.
            ttl: Seconds that it stays.
            expected: The sequence of the key's last message, 0 for none; `None` for any.

        Returns:
            The sequence; `None` when the last message was another one.
        """
        return await self._publish(key, packed(value, ttl=ttl), ttl, expected)

    async def publish_removal(self, key: str, expected: int) -> int | None:
        """Write the trace of a removal, if the key's last message is the expected one."""
        return await self._publish(key, packed(b"", ttl=TRACE, removed=True), TRACE, expected)

    async def _publish(
        self,
        key: str,
        body: bytes,
        ttl: float | None,
        expected: int | None,
    ) -> int | None:
        await self.prepare()
        headers = {}
        if ttl is not None and self._server_ttl:
            headers["Nats-TTL"] = f"{max(1, math.ceil(ttl))}s"
        if expected is not None:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(expected)
        answer = await self.connection.request(
            subject_of(self._place.kept, key), body, headers=headers
        )
        result = self._api.result(answer, (_WRONG_LAST_SEQUENCE,))
        if result is None:
            return None
        if result.get("stream") != self._name:
            raise self.connection.problem(
                f"keeps {self._place.kept}.> in the stream {one_line(str(result.get('stream')))}",
                f"set stream to it, or remove it: {self._name} is the one that is read",
            )
        if "seq" not in result:
            raise self.connection.problem("does not answer as JetStream does")
        return int(result["seq"])

    async def below(
        self, keys: str, state: StreamState, *, largest: int
    ) -> AsyncGenerator[Message, None]:
        """Yield the last messages below a prefix of keys that `state` was asked for; see `read`."""
        # A consumer is dear for the server, ten times a plain question; most agents find that
        # little or nothing waits for them. With replicas, one that lags may answer such a question.
        if len(state.keys) <= FEW and not self._replicated:
            answers = await asyncio.gather(*(self.last(key) for key in state.keys))
            found = [one for one in answers if one is not None and is_ours(one.entry)]
            if all(message.entry.revision <= state.last for message in found):
                for message in found:
                    if self.needs_time(message):
                        await self.tell_time(message.entry.key)
                await self._sweep(self._dead(found))
                for message in sorted(found, key=lambda one: one.entry.revision):
                    if len(message.entry.value) <= largest:
                        yield message
                return
        async for message in self.read(keys, largest=largest):
            yield message

    async def read(
        self, keys: str, *, largest: int, after: int | None = None
    ) -> AsyncGenerator[Message, None]:
        """Yield the last messages below a prefix of keys, in the order of their sequences.

        Where the server stalls they come from the first on once more: never a shorter list.

        Args:
            keys: The prefix.
            largest: The bytes of the largest value that is of use.
            after: Only those after this sequence.
        """
        subject = subjects_below(self._place.kept, keys)
        policy = stream_config.deliver_policy(after)
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
                    if message.entry.revision > reached:  # it goes on
                        reached = message.entry.revision
                        deadline = end_of_step(self.timeout)
            except FloodError:  # there are large values among them
                if size == CAREFUL:
                    raise
                size = CAREFUL
            except StalledError as error:  # another consumer counts anew
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
    ) -> AsyncGenerator[Message, None]:
        async with self._consumer(subject, policy) as (name, pending):
            if pending:
                async for part in self._api.fetched(self._name, name, size=size):
                    yield fetched(key_of(self._place.kept, part.subject), part)

    async def sweep(self, keys: str) -> None:
        """Remove some of what has expired below a prefix, where the server does not."""
        if not self._server_ttl:
            async for _ in self.read(keys, largest=0):
                pass

    async def tell_time(self, key: str) -> None:
        """Learn the server's time, in the only way that 2.9 has, if a key's expiry needs it."""
        if not self._clock.known:
            async with self._consumer(subject_of(self._place.kept, key), {"deliver_policy": "new"}):
                pass  # the time is in the answer

    @asynccontextmanager
    async def _consumer(
        self, subject: str, policy: dict[str, object]
    ) -> AsyncGenerator[tuple[str, int], None]:
        """Return the name of a consumer that is made for one read, and what it has to send."""
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
            with suppress(UnavailableError):  # it ends by itself when nobody uses it
                await self._api.call(f"CONSUMER.DELETE.{self._name}.{name}", {}, accept=(10014,))

    def heard(self, message: Msg) -> Message:
        """Read a message that the server repeated; what is none raises ValueError."""
        headers = message.headers or {}
        try:
            subject, revision = headers["Nats-Subject"], parse_revision(headers["Nats-Sequence"])
        except KeyError as error:
            raise ValueError("no message of the stream") from error
        # It has just been stored: whatever its ttl is, it has not expired.
        key = key_of(self._place.kept, subject)
        found = unpacked(key, message.data, revision=revision, stored=math.inf)
        if is_ours(found.entry):
            return found
        raise ValueError("no key of the bus")

    def alive(self, message: Message) -> bool:
        """Return whether a message is a value that has not certainly expired."""
        if message.removed:
            return False
        return message.expires is None or message.expires > self._clock.passed()

    def needs_time(self, message: Message) -> bool:
        """Return whether only the server's time can tell if a message has expired."""
        return message.expires is not None and not self._clock.known and not self._server_ttl

    def _dead(self, messages: Iterable[Message]) -> list[int]:
        """Return the sequences of what has expired, where the server does not remove it."""
        if self._server_ttl:
            return []
        passed = self._clock.passed()
        return [
            one.entry.revision
            for one in messages
            if one.expires is not None and one.expires < passed
        ]

    async def _sweep(self, dead: Sequence[int]) -> None:
        """Remove what has expired: by sequence, so nothing newer."""
        for revision in dead[:SWEEP]:
            # A reader has other things to do in its time, and the next one goes on with this.
            if end_of_step(self.timeout) - time.monotonic() < self.timeout / 2:
                return
            try:
                await self._api.call(
                    f"STREAM.MSG.DELETE.{self._name}", {"seq": revision, "no_erase": True}
                )
            except UnavailableError:
                return  # this node may not; another one may
