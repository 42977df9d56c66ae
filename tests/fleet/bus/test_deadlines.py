"""A call of several steps has one deadline, also where each single step would be in time.

The test delays the line to a real server: what a client sends takes a while, and what the server
answers arrives at once.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest

from localpuppet.base.errors import UnavailableError
from localpuppet.fleet.bus.etcd_bus import open_etcd
from localpuppet.fleet.bus.key_value import KeyValue, in_time
from localpuppet.fleet.bus.nats_bus import open_nats
from localpuppet.fleet.bus.nats_link import NatsConnection
from tests.rigs.engines import ServerEngine
from tests.rigs.following import Follower, follow
from tests.rigs.reaching import servers_at
from tests.rigs.servers import EtcdServer, NatsServer
from tests.rigs.waiting import PATIENCE, answered

TIMEOUT = 2.0
# Of the timeout. etcd's client asks three times: for a lease, for the write, and as that took long
# for the lease again; NATS's has lost its connection, and asks for one, for the stream, and for
# the write. (If a ping takes half of the timeout, the line is too slow for NATS and for leases.)
LAG = 0.42


class Line:
    """A line to a port of this machine.

    Args:
        port: Where it leads.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.lag = 0.0
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Be the line for one client."""
        answers, server = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, server]
        await asyncio.gather(self._lagging(reader, server), self._at_once(answers, writer))

    async def _lagging(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        at = 0.0
        while data := await reader.read(65536):
            at = max(at + 1e-6, loop.time() + self.lag)  # what came later does not overtake
            loop.call_at(at, writer.write, data)
        writer.close()

    @staticmethod
    async def _at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    def cut(self) -> None:
        for writer in self._writers:
            writer.close()


@asynccontextmanager
async def laggard(
    served: ServerEngine, *, timeout: float = TIMEOUT
) -> AsyncGenerator[tuple[KeyValue, Line], None]:
    """Yield a client, and its line to the server."""
    assert isinstance(served.server, EtcdServer | NatsServer)
    line = Line(int(served.server.url.rpartition(":")[2]))
    async with await asyncio.start_server(line.serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        if served.name == "etcd":
            servers = servers_at(f"http://127.0.0.1:{port}")
            store: KeyValue = await answered(lambda: open_etcd(servers, timeout=timeout))
        else:
            servers = servers_at(f"nats://127.0.0.1:{port}")
            store = await answered(lambda: open_nats(servers, timeout=timeout))
        try:
            yield store, line
        finally:
            await store.close()
            line.cut()


async def test_steps_share_one_deadline(served: ServerEngine) -> None:
    prefix = served.prefix()
    async with laggard(served) as (store, line):
        await answered(lambda: store.put(prefix + "a", b"1", ttl=60.0))
        if served.name != "etcd":
            follower = await follow(store, prefix)
            line.cut()
            await follower.failed()
        line.lag = LAG * TIMEOUT
        with pytest.raises(UnavailableError):
            await store.put(prefix + "a", b"2", ttl=5.0)


class Hasty:
    """A caller with less time than its store allows a call.

    Args:
        step: The call of the store.
    """

    timeout = 0.2

    def __init__(self, step: Callable[[], Awaitable[object]]) -> None:
        self._step = step

    @in_time
    async def call(self) -> None:
        """Make the call."""
        await self._step()


@pytest.mark.parametrize("served", ["etcd"], indirect=True)
async def test_a_call_without_time_does_not_end_the_connection(served: ServerEngine) -> None:
    """Its answer is late for this call only. (On NATS no late answer ends a connection.)"""
    prefix = served.prefix()
    async with laggard(served, timeout=10 * TIMEOUT) as (store, line):
        follower = Follower(store, prefix)
        await follower.listed()
        line.lag = 2 * Hasty.timeout
        with pytest.raises(UnavailableError):
            await Hasty(partial(store.put, prefix + "a", b"2", ttl=5.0)).call()
        line.lag = 0.0
        await store.put(prefix + "b", b"3")
        await follower.until(lambda: follower.state.get(prefix + "b") == b"3")
        await follower.stop()


async def test_a_call_that_waits_for_another_calls_connection_keeps_its_own_deadline() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        connection = NatsConnection(servers_at(url), inbox="_INBOX", timeout=PATIENCE)
        patient = asyncio.create_task(connection.link())
        await asyncio.sleep(0)
        with pytest.raises(UnavailableError):
            await Hasty(connection.link).call()
        assert not patient.done()
        patient.cancel()
        await asyncio.wait([patient])
        await connection.close()
