"""One watch of etcd: a stream that its own task reads.

It detects an unreachable server. If a stream is silent for half of the timeout, the watch requests
its progress, and the server must answer within the other half. (HTTP/2 pings check the connection
only, and etcd ends connections that ping more often than every five seconds.)

A task reads the stream, so that no timeout cuts a message in two.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import replace

from grpclib.exceptions import GRPCError

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.text import one_line
from localpuppet.base.value import Value
from localpuppet.fleet.bus.etcd import messages
from localpuppet.fleet.bus.etcd.connection import (
    BROKEN,
    TOKEN_PROBLEMS,
    Bytes,
    Channel,
    CompactedError,
    EtcdConnection,
    in_a_task,
    open_stream,
    receive,
)

# Limits of the queue of messages; beyond them, flow control pauses the server.
WAITING = 64
WAITING_BYTES = 2 * 1024 * 1024


class KnownKeys(Value):
    """The state when a watch resumed.

    Attributes:
        after: The last revision seen.
        upto: The store's revision at that moment.
        revisions: The existing keys written after `after`, with their revisions.
    """

    after: int
    upto: int
    revisions: dict[str, int]

    def tells(self, event: messages.EtcdEvent) -> bool:
        """Return whether a replayed event is the newest state of its key."""
        if event.removed:
            return event.entry.key not in self.revisions
        return self.revisions.get(event.entry.key) == event.entry.revision


class EtcdWatch:
    """A watch on a prefix, open between `async with` and its end.

    Args:
        connection: The connection.
        prefix: The prefix.
        start: The first revision to report.
        largest: Maximum bytes of a reported value.
    """

    def __init__(
        self, connection: EtcdConnection, prefix: str, *, start: int, largest: int
    ) -> None:
        self._connection = connection
        self._request = messages.watch_request(prefix, start=start)
        self._seen = start - 1
        self._largest = largest
        self._waiting = 0
        self._room = asyncio.Event()
        self._queue: asyncio.Queue[messages.WatchMessage | UnavailableError] = asyncio.Queue(
            WAITING
        )
        self._stream: Bytes | None = None
        self._channel: Channel | None = None
        self.task: asyncio.Task[None]

    async def __aenter__(self) -> "EtcdWatch":
        self.task = asyncio.create_task(self._read())
        self.task.add_done_callback(self._ended)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])

    async def events(self) -> AsyncGenerator[messages.EtcdEvent, None]:
        """Yield the events.

        Raises:
            CompactedError: The server no longer has the changes since `start`.
        """
        while True:
            message = await self._next()
            if 0 < message.revision < self._seen:  # else it waits for revisions of another store
                raise self._problem("lost its data")
            for event in message.events:
                yield event
            if message.compacted:
                raise CompactedError
            if message.cancelled:
                if _stale(message):
                    self._connection.forget_token()
                raise self._problem(f"ended the watch: {one_line(message.reason)}")

    async def _next(self) -> messages.WatchMessage:
        half = self._connection.timeout / 2
        for asked in (False, True):
            with suppress(TimeoutError):
                async with asyncio.timeout(half):
                    return await self._taken()
            if asked:
                break
            if self._stream is not None:
                with suppress(*BROKEN):
                    await in_a_task(self._stream.send_message(messages.PROGRESS_REQUEST), half)
        self._connection.drop(self._channel)
        raise self._problem(f"the watch was silent for {self._connection.timeout:g} s")

    async def _taken(self) -> messages.WatchMessage:
        if self._queue.empty() and self.task.done():
            raise self._closed()
        message = await self._queue.get()
        if isinstance(message, UnavailableError):
            raise message
        self._waiting -= _size(message)
        self._room.set()
        return message

    def _ended(self, _task: "asyncio.Task[None]") -> None:
        """Wake the reader of the queue, also if the task was cancelled without a message."""
        if self._queue.empty():
            self._queue.put_nowait(self._closed())

    async def _read(self) -> None:
        problem: UnavailableError
        try:
            if await self._read_stream(first=True):
                await self._read_stream(first=False)
            problem = self._problem("ended the watch")
        except UnavailableError as error:
            problem = error
        except GRPCError as error:
            problem = self._connection.refusal(error)
        except (*BROKEN, ValueError) as error:
            problem = self._problem(f"the watch broke: {one_line(str(error)) or 'no reason given'}")
            self._connection.drop(self._channel)
        await self._queue.put(problem)

    async def _read_stream(self, *, first: bool) -> bool:
        """Queue the messages of a stream until its end.

        Returns:
            Whether the first stream was denied for its token: it has expired, or users were
                changed, since the last call.
        """
        channel, metadata = await self._connection.ready()
        self._channel = channel
        async with open_stream(channel, messages.WATCH, metadata) as stream:
            await stream.send_message(self._request)
            self._stream = stream
            while (answer := await self._receive(stream)) is not None:
                message = messages.read_watched(answer)
                if first and _stale(message):
                    self._connection.forget_token()
                    with suppress(*BROKEN):  # the server was faster
                        await stream.cancel()
                    return True
                first = False
                await self._keep(message)
        return False

    async def _receive(self, stream: Bytes) -> bytes | None:
        return await receive(stream, where=self._connection.where)

    async def _keep(self, message: messages.WatchMessage) -> None:
        """Queue the events of a message, without larger values, when there is room."""
        events = [event for event in message.events if len(event.entry.value) <= self._largest]
        message = replace(message, events=tuple(events))
        size = _size(message)
        while self._waiting and self._waiting + size > WAITING_BYTES:
            self._room.clear()
            await self._room.wait()
        self._waiting += size
        await self._queue.put(message)

    def _closed(self) -> UnavailableError:
        return self._problem("the watch was ended: the connection was lost, or closed")

    def _problem(self, what: str) -> UnavailableError:
        return UnavailableError(what, where=self._connection.where)


def _stale(message: messages.WatchMessage) -> bool:
    """Return whether a watch ends because the server no longer knows the token."""
    return message.cancelled and any(text in message.reason for text in TOKEN_PROBLEMS)


def _size(message: messages.WatchMessage) -> int:
    return sum(len(event.entry.key) + len(event.entry.value) for event in message.events)
