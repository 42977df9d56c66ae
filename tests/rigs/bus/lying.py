"""Servers of the bus that send more than a bus holds, and an address that leads an agent to one.

The servers are in the loop of the test. An agent, which is a process, knows only the address of a
`Door`: it leads to the lying server, and after `turn` to an honest one.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from urllib.parse import urlsplit

from grpclib.server import Stream

from localpuppet.fleet.bus import etcd_messages
from localpuppet.fleet.bus.etcd_messages import encode
from tests.rigs.bus import etcd_double
from tests.rigs.waiting import PATIENCE

MIB = 1024 * 1024
CHUNK = 64 * 1024
INFO = b'INFO {"server_id": "x", "version": "2.11.0", "headers": true, "max_payload": 1048576}\r\n'
STATUS = encode((2, "3.5.33"))
EMPTY = encode((1, encode((1, 1), (3, 5))))  # a RangeResponse

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(serve: Serve) -> AsyncGenerator[str, None]:
    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
            await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    async with await asyncio.start_server(served, "127.0.0.1", 0) as server:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def answering(answer: bytes, *, first: bytes = INFO) -> Serve:
    """Give each request the same answer, as far as the protocol allows."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        number = b""
        while line := await reader.readline():
            words = line.split()
            if words[0] == b"PING":
                writer.write(b"PONG\r\n")
            elif words[0] == b"SUB":
                number = words[-1]
            elif words[0] in (b"PUB", b"HPUB"):
                await reader.readexactly(int(words[-1]) + 2)
                writer.write(b"MSG %s %s %d\r\n%s\r\n" % (words[2], number, len(answer), answer))

    return serve


def page(entry: bytes, count: int) -> bytes:
    """Return a RangeResponse of many entries."""
    return EMPTY + encode((3, 1)) + encode((2, entry)) * count


async def watching(stream: Stream[bytes, bytes]) -> None:
    """Send values that no client wrote, without end."""
    await stream.recv_message()
    event = encode((2, encode((1, "/a/x"), (3, 7), (5, bytes(100_000)))))
    for _ in range(5000):
        await stream.send_message(encode((11, event)) * 10)


def etcd_lies(
    answer: Callable[[], bytes], watch: etcd_double.Serve | None = None
) -> AbstractAsyncContextManager[str]:
    return etcd_double.etcd_double(
        {
            etcd_messages.STATUS: etcd_double.answering(STATUS),
            etcd_messages.RANGE: etcd_double.answering(answer()),
            etcd_messages.WATCH: watch or etcd_double.answering(),
        }
    )


async def endless_message(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Announce a message of ten gigabytes, and send it."""
    writer.write(INFO + b"PONG\r\n" * 2 + b"MSG x 1 9999999999\r\n")
    while True:
        writer.write(bytes(MIB))
        await writer.drain()


async def endless_line(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(INFO + b"PONG\r\nINFO ")
    while True:
        writer.write(b"x" * MIB)
        await writer.drain()


async def ever_more_servers(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Name ten thousand other servers, again and again."""
    writer.write(INFO + b"PONG\r\n")
    for number in range(200):
        names = ",".join(f'"10.0.{number}.1:{port}"' for port in range(10_000))
        writer.write(INFO.replace(b"}", b', "connect_urls": [%s]}' % names.encode()))
        await writer.drain()


LIES: dict[str, Callable[[], AbstractAsyncContextManager[str]]] = {
    "etcd, one answer": lambda: etcd_lies(lambda: page(bytes(MIB), 32)),
    "etcd, small entries": lambda: etcd_lies(lambda: page(b"", MIB)),
    "etcd, nothing and more": lambda: etcd_lies(lambda: page(b"", 0)),
    "etcd, a watch": lambda: etcd_lies(lambda: EMPTY, watching),
    "nats, a message": lambda: listening(endless_message),
    "nats, a line": lambda: listening(endless_line),
    "nats, servers": lambda: listening(ever_more_servers),
    "nats, an answer": lambda: listening(answering(b"[" * 3 * MIB)),
    "nats, a deep answer": lambda: listening(answering(b'{"a":' * 100_000)),
    "nats, many values": lambda: listening(answering(b"[" + b"[]," * 600_000 + b"1]")),
}


class Door:
    """An address that leads to one server first, and to another one later."""

    def __init__(self, first: str) -> None:
        self._to = first
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.get_running_loop()
        self.url = ""  # the URL for the settings of an agent
        self.came = 0  # the number of connections
        self.told = 0  # the number of bytes that the servers have sent

    def turn(self, to: str) -> None:
        """Lead to another server from now on, also open connections."""

        def close() -> None:
            self._to = to
            for writer in self._open:
                writer.transport.abort()

        self._loop.call_soon_threadsafe(close)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Accept a client."""
        self.came += 1
        to = urlsplit(self._to)
        ends = {writer}
        try:
            inside, outside = await asyncio.open_connection(to.hostname, to.port)
            ends.add(outside)
            self._open |= ends
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pass(reader, outside))
                both.create_task(self._pass(inside, writer, counted=True))
        except* OSError:
            pass  # one of them has gone
        finally:
            self._open -= ends
            for end in ends:
                end.transport.abort()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counted: bool = False
    ) -> None:
        while data := await reader.read(CHUNK):
            self.told += len(data) if counted else 0
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError


@contextmanager
def behind_a_door(lie: str) -> Iterator[Door]:
    """Run a lying server, and the door that leads to it, in a separate thread."""
    ready: Future[tuple[Door, Callable[[], object]]] = Future()

    async def run() -> None:
        leave = asyncio.Event()
        async with LIES[lie]() as url:
            door = Door(url)
            async with await asyncio.start_server(door.serve, "127.0.0.1", 0) as server:
                port = server.sockets[0].getsockname()[1]
                door.url = f"{urlsplit(url).scheme}://127.0.0.1:{port}"
                loop = asyncio.get_running_loop()
                ready.set_result((door, lambda: loop.call_soon_threadsafe(leave.set)))
                await leave.wait()

    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    thread.start()
    door, leave = ready.result(PATIENCE)
    try:
        yield door
    finally:
        leave()
        thread.join(PATIENCE)
