"""Servers that send more than a bus holds: a client leaves them, and stays small."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from grpclib.server import Stream

from localpuppet.bus.etcd import messages
from localpuppet.bus.etcd.protobuf import encode
from tests.bus.test_hostile_servers import INFO, answering, listening
from tests.rigs.bus import etcd_double
from tests.rigs.node import REPOSITORY

BAR = 96 * 1024 * 1024
MIB = 1024 * 1024
STATUS = encode((2, "3.5.33"))
# What an agent does again and again; the peak of its memory is the last line.
CLIENT = """
import asyncio, sys
from localpuppet.bus.key_value import Listing
from localpuppet.bus.servers import Endpoint, Servers
from localpuppet.errors import UnavailableError

async def follow(url):
    engine = "etcd" if url.startswith("http") else "nats"
    servers = Servers(endpoints=(Endpoint.parse(url, engine=engine),))
    if engine == "etcd":
        from localpuppet.bus.etcd.store import open_etcd as opened
    else:
        from localpuppet.bus.nats.store import open_nats as opened
    for _ in range(2):
        try:
            store = await opened(servers, timeout=1.0)
        except UnavailableError:
            continue
        for parts in (False, True):
            try:
                async with asyncio.timeout(3.0):
                    async for change in store.watch("/a/", parts=parts, largest=100_000):
                        if not isinstance(change, Listing):
                            await asyncio.Event().wait()  # busy with what it was told
            except (UnavailableError, TimeoutError) as error:
                print(error)
        await store.close()

asyncio.run(follow(sys.argv[1]))
lines = open("/proc/self/status").read().splitlines()
print([line.split()[1] for line in lines if line.startswith("VmHWM")][0])
"""


async def peak(url: str) -> int:
    """Return how many bytes a client took at most."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CLIENT, url), cwd=REPOSITORY, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    assert process.returncode == 0
    return int(said.split()[-1]) * 1024


def page(entry: bytes, count: int) -> bytes:
    """Return a RangeResponse of many entries."""
    header = encode((1, encode((1, 1), (3, 5))), (3, 1))
    return header + encode((2, entry)) * count


async def watching(stream: Stream[bytes, bytes]) -> None:
    """Tell of values that nobody wrote, without an end."""
    await stream.recv_message()
    event = encode((2, encode((1, "/a/x"), (3, 7), (5, bytes(100_000)))))
    for _ in range(5000):
        await stream.send_message(encode((11, event)) * 10)


def range_lies(answer: Callable[[], bytes]) -> AbstractAsyncContextManager[str]:
    return etcd_double.etcd_double(
        {
            messages.STATUS: etcd_double.answering(STATUS),
            messages.RANGE: etcd_double.answering(answer()),
            messages.WATCH: etcd_double.answering(),
        }
    )


def watch_lies() -> AbstractAsyncContextManager[str]:
    empty = encode((1, encode((1, 1), (3, 5))))
    return etcd_double.etcd_double(
        {
            messages.STATUS: etcd_double.answering(STATUS),
            messages.RANGE: etcd_double.answering(empty),
            messages.WATCH: watching,
        }
    )


@asynccontextmanager
async def endless_message() -> AsyncGenerator[str, None]:
    """Announce a message of ten gigabytes, and send it."""

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(INFO)
        writer.write(b"PONG\r\n" * 2 + b"MSG x 1 9999999999\r\n")
        while True:
            writer.write(bytes(MIB))
            await writer.drain()

    async with listening(serve) as url:
        yield url


@asynccontextmanager
async def endless_line() -> AsyncGenerator[str, None]:
    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(INFO + b"PONG\r\nINFO ")
        while True:
            writer.write(b"x" * MIB)
            await writer.drain()

    async with listening(serve) as url:
        yield url


@asynccontextmanager
async def ever_more_servers() -> AsyncGenerator[str, None]:
    """Name ten thousand other servers, again and again."""

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(INFO + b"PONG\r\n")
        for number in range(200):
            names = ",".join(f'"10.0.{number}.1:{port}"' for port in range(10_000))
            writer.write(INFO.replace(b"}", b', "connect_urls": [%s]}' % names.encode()))
            await writer.drain()

    async with listening(serve) as url:
        yield url


LIES: dict[str, Callable[[], AbstractAsyncContextManager[str]]] = {
    "etcd, one answer": lambda: range_lies(lambda: page(bytes(MIB), 32)),
    "etcd, small entries": lambda: range_lies(lambda: page(b"", MIB)),
    "etcd, nothing and more": lambda: range_lies(lambda: page(b"", 0)),
    "etcd, a watch": watch_lies,
    "nats, a message": endless_message,
    "nats, a line": endless_line,
    "nats, servers": ever_more_servers,
    "nats, an answer": lambda: listening(answering(b"[" * 3 * MIB)),
    "nats, a deep answer": lambda: listening(answering(b'{"a":' * 100_000)),
    "nats, many values": lambda: listening(answering(b"[" + b"[]," * 600_000 + b"1]")),
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_server_that_sends_too_much_is_left(lie: str) -> None:
    async with LIES[lie]() as url:
        assert await peak(url) < BAR
