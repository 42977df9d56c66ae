"""Calls and watches of an etcd cluster over gRPC: endpoints in turn, TLS, tokens, deadlines.

It has one HTTP/2 connection, to the first endpoint that answers. Messages are bytes (ADR 13).

- Every call ends within the timeout, over all endpoints that it tries.
- A call that may have reached a server is repeated elsewhere unless it may have written.

It detects an unreachable server. If a stream is silent for half of the timeout, the watch requests
its progress, and the server must answer within the other half. (HTTP/2 pings check the connection
only, and etcd ends connections that ping more often than every five seconds.)

A task reads the stream, so that no timeout cuts a message in two.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from typing import Any, TypeVar

from grpclib.client import Channel, Stream
from grpclib.config import Configuration
from grpclib.const import Cardinality, Status
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError, StreamTerminatedError
from h2.exceptions import H2Error, StreamClosedError

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.text import one_line
from localpuppet.base.machine.anchors import tls_context
from localpuppet.base.machine.waiting import retrieve_error
from localpuppet.base.value import Value
from localpuppet.fleet.bus import etcd_messages as messages
from localpuppet.fleet.bus.bus_limits import MAX_ETCD_ANSWER
from localpuppet.fleet.bus.key_value import FullError, RefusedError, end_of_step
from localpuppet.fleet.bus.servers import (
    LOST,
    Servers,
    failure_text,
    lost_connection,
    read_little,
    tls_failure,
)

Bytes = Stream[bytes, bytes]
_Result = TypeVar("_Result")

# Errors of a broken connection. A stream that the server closes during use raises an error of the
# HTTP/2 library.
BROKEN = (OSError, TimeoutError, StreamTerminatedError, H2Error)

# If an attempt had less than this part of the time that it has in a call of one step, its timeout
# says nothing about a connection that others use.
FAIR = 0.9

TOKEN_PROBLEMS = ("invalid auth token", "revision of auth store is old")


# Bytes that a server may send ahead: in the smallest frames they take a hundred times as much
# memory.
_WINDOW = 256 * 1024


class CompactedError(Exception):
    """The server no longer has the requested revision."""


class LeaseLostError(UnavailableError):
    """The server does not know the lease; nothing was written."""


class TooLargeError(UnavailableError):
    """An answer exceeds `MAX_ETCD_ANSWER` bytes; only its head was read."""


class _Codec(CodecBase):
    """Passes messages through: they are bytes already."""

    __content_subtype__ = "proto"

    def encode(self, message: object, message_type: object) -> bytes:
        if not isinstance(message, bytes):
            raise TypeError("a message is bytes")
        return message

    def decode(self, data: bytes, message_type: object) -> bytes:
        return data


class EtcdConnection:
    """One connection to a cluster; `timeout` is the deadline of each call."""

    def __init__(self, servers: Servers, *, timeout: float, password: str | None = None) -> None:
        self._servers = servers
        self._endpoints = list(servers.endpoints)
        self._tls: ssl.SSLContext | None = None
        if servers.tls:
            self._tls = tls_context(servers.ca, servers.certificate, servers.key)
            self._tls.set_alpn_protocols(["h2"])
        self._user = None if servers.user is None else (servers.user, password or "")
        self._token = ""
        self.timeout = timeout
        self._channel: Channel | None = None
        self._closed = False

    @property
    def where(self) -> str:
        """Return the current server, or the next one to try: for messages."""
        return self._endpoints[0].url

    async def call(self, method: str, request: bytes) -> bytes:
        """Send a request; return the answer. A call that may have written is not repeated."""

        async def step(channel: Channel) -> bytes:
            return await self._with_token(channel, method, request)

        return await self._tried(step, is_repeatable=method not in messages.WRITES)

    async def ready(self) -> tuple[Channel, dict[str, str]]:
        """Return a connection to the first endpoint that answers, and the metadata of its calls."""

        async def step(channel: Channel) -> tuple[Channel, dict[str, str]]:
            return channel, await self._metadata(channel)

        return await self._tried(step, is_repeatable=True)

    async def _tried(
        self, step: Callable[[Channel], Coroutine[Any, Any, _Result]], *, is_repeatable: bool
    ) -> _Result:
        """Return the result of a step at the first endpoint that answers."""
        deadline = end_of_step(self.timeout)
        problem = self._problem("does not answer")
        # One attempt more than endpoints: a cluster that changes its leader answers at once.
        turns = len(self._endpoints) + 1
        for left in range(turns, 0, -1):
            share = (deadline - time.monotonic()) / left
            channel = self._opened()
            try:
                await self._connect(channel, share)
            except (OSError, TimeoutError) as error:
                problem = self._unreachable(self._reason(error, share))
                self._refuse_unfair(error, share, turns, problem)
                self.drop(channel)
                continue
            rest = share if is_repeatable else deadline - time.monotonic()
            try:
                return await in_a_task(step(channel), rest)
            except GRPCError as error:
                if error.status is Status.OUT_OF_RANGE and "compacted" in (error.message or ""):
                    raise CompactedError from error
                problem = self.refusal(error)
                if error.status is not Status.UNAVAILABLE:
                    raise problem from error
            except BROKEN as error:
                problem = self._problem(f"does not answer: {self._reason(error, rest)}")
                self._refuse_unfair(error, rest, turns if is_repeatable else 1, problem)
            self.drop(channel)
            if not is_repeatable:
                break
        raise problem

    async def _with_token(self, channel: Channel, method: str, request: bytes) -> bytes:
        try:
            return await self._once(channel, method, request)
        except GRPCError as error:
            if not any(text in (error.message or "") for text in TOKEN_PROBLEMS):
                raise
            self._token = ""  # expired, or users were changed: nothing was done, so once more
            return await self._once(channel, method, request)

    async def _once(self, channel: Channel, method: str, request: bytes) -> bytes:
        single = method != messages.KEEP_ALIVE  # a stream, used for one exchange
        cardinality = Cardinality.UNARY_UNARY if single else Cardinality.STREAM_STREAM
        metadata = await self._metadata(channel)
        async with channel.request(method, cardinality, bytes, bytes, metadata=metadata) as stream:
            await stream.send_message(request, end=True)
            answer = await receive(stream, where=self.where)
            if answer is None:
                raise StreamTerminatedError("no answer")
            if not single:
                with suppress(StreamClosedError):  # the server was faster
                    await stream.cancel()
            return answer

    def _refuse_unfair(
        self, error: Exception, seconds: float, turns: int, problem: UnavailableError
    ) -> None:
        """Raise the problem of an attempt that timed out with hardly any time left.

        Such a timeout says nothing about the connection, which others use: it stays open.
        """
        if isinstance(error, TimeoutError) and seconds < FAIR * self.timeout / turns:
            raise problem from error

    def _opened(self) -> Channel:
        if self._closed:
            raise UnavailableError("is closed", where="bus etcd")
        if self._channel is None:
            first = self._endpoints[0]
            self._channel = Channel(
                first.host,
                first.port,
                codec=_Codec(),
                ssl=self._tls if first.tls else None,
                config=Configuration(
                    http2_connection_window_size=_WINDOW, http2_stream_window_size=_WINDOW
                ),
            )
        return self._channel

    async def _connect(self, channel: Channel, seconds: float) -> None:
        """Connect explicitly: if this fails, nothing was sent."""
        if not channel._connected:
            protocol = await in_a_task(channel.__connect__(), seconds)
            read_little(getattr(protocol.connection, "_transport", None))  # None once it is lost
        if channel is not self._channel:  # dropped by another call, or closed
            channel.close()
            raise ConnectionAbortedError("the connection was abandoned")

    async def _metadata(self, channel: Channel) -> dict[str, str]:
        if self._user is None:
            return {}
        if not self._token:
            async with channel.request(
                messages.AUTHENTICATE, Cardinality.UNARY_UNARY, bytes, bytes
            ) as stream:
                await stream.send_message(messages.authenticate_request(*self._user), end=True)
                answer = await receive(stream, where=self.where)
                self._token = messages.read_token(answer or b"")
        return {"token": self._token}

    def forget_token(self) -> None:
        """Request a new token before the next call."""
        self._token = ""

    def drop(self, channel: Channel | None) -> None:
        """Close a connection; if it is the current one, try the next endpoint afterwards."""
        if channel is None:
            return
        # Also a connection that another call dropped: this call may have reopened it.
        channel.close()
        if channel is self._channel:
            self._channel = None
            self._endpoints.append(self._endpoints.pop(0))

    def close(self) -> None:
        """Close the connection; every later call raises."""
        self._closed = True
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def refusal(self, error: GRPCError) -> UnavailableError:
        """Return the error for a status of the server."""
        text = one_line((error.message or error.status.name).removeprefix("etcdserver: "))
        hint = ""
        if error.status is Status.PERMISSION_DENIED:
            hint = "check this node's role in etcd"
            return RefusedError(text, where=self.where, hint=hint)
        if "user name not found" in text:
            hint = "add the name of this certificate to the roster, and run its script again"
            return RefusedError(text, where=self.where, hint=hint)
        if "database space exceeded" in text:
            hint = "compact and defragment etcd, and disarm its alarm"
            return FullError(f"is full: {text}", where=self.where, hint=hint)
        if "requested lease not found" in text:
            return LeaseLostError(text, where=self.where)
        if "authentication failed" in text or "user name is empty" in text:
            hint = "check 'user' and 'password_file' of the bus"
        return self._problem(text, hint)

    def _reason(self, error: Exception, seconds: float) -> str:
        if isinstance(error, TimeoutError):
            return f"no answer within {max(seconds, 0):.3g} s"
        if text := tls_failure(error, self._servers):
            return text
        text = failure_text(error)
        lost = isinstance(error, (StreamTerminatedError, *LOST))
        return lost_connection(text, self._servers) if lost else text

    def _unreachable(self, reason: str) -> UnavailableError:
        hint = "check that etcd is running and 'buses.etcd.servers' is right"
        return self._problem(f"cannot be reached: {reason}", hint)

    def _problem(self, what: str, hint: str = "") -> UnavailableError:
        return UnavailableError(what, where=self.where, hint=hint)


async def in_a_task(step: Coroutine[Any, Any, _Result], seconds: float) -> _Result:
    """Return what `step` returns, run in a separate task, within `seconds`.

    grpclib ends calls of a lost connection by cancelling the waiting task, even when that task has
    just stopped waiting. In the caller's task, the cancellation would hit whatever comes next.
    """
    task = asyncio.create_task(step)
    try:
        await asyncio.wait({task}, timeout=max(0.0, seconds))
        if not task.done():
            raise TimeoutError
        if task.cancelled():
            raise StreamTerminatedError("the connection was lost")
        return task.result()
    finally:
        task.cancel()
        task.add_done_callback(retrieve_error)


def open_stream(
    channel: Channel, method: str, metadata: dict[str, str]
) -> AbstractAsyncContextManager[Bytes]:
    """Return a bidirectional stream of a method."""
    return channel.request(method, Cardinality.STREAM_STREAM, bytes, bytes, metadata=metadata)


async def receive(stream: Bytes, *, where: str) -> bytes | None:
    """Return the next message of a stream, `None` at its end."""
    raw = stream._stream
    read = type(raw).recv_data

    async def bounded(size: int) -> bytes:
        if size > MAX_ETCD_ANSWER:
            raise TooLargeError(
                f"sends a message of {size} bytes; at most {MAX_ETCD_ANSWER} are allowed",
                where=where,
            )
        return await read(raw, size)

    # The library reads the length of a message, and then waits for that many bytes.
    raw.recv_data = bounded  # type: ignore[method-assign]
    return await stream.recv_message()


# Limits of the queue of messages; beyond them, flow control pauses the server.
WAITING = 64
WAITING_BYTES = 2 * 1024 * 1024


class KnownKeys(Value):
    """The keys that exist when a watch resumes and were written after `after`, with revisions."""

    after: int
    upto: int
    revisions: dict[str, int]

    def tells(self, event: messages.EtcdEvent) -> bool:
        """Return whether a replayed event is the newest state of its key."""
        if event.removed:
            return event.entry.key not in self.revisions
        return self.revisions.get(event.entry.key) == event.entry.revision


class EtcdWatch:
    """A watch on a prefix, open between `async with` and its end."""

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
        """Yield the events."""
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
        """Queue the messages of a stream until its end; return whether the first one was denied.

        Its token has then expired, or users were changed, since the last call.
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
