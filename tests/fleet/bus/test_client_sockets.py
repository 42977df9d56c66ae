"""How much a client reads at once: with and without TLS, and in localpuppet's clients."""

import asyncio
import ssl
from pathlib import Path

import pytest

from localpuppet.base.machine.anchors import tls_context
from localpuppet.fleet.bus.etcd_calls import EtcdConnection
from localpuppet.fleet.bus.nats_client import TolerantClient
from localpuppet.fleet.bus.nats_link import NatsLink
from localpuppet.fleet.bus.servers import READ, read_little
from tests.rigs.engines import ServerEngine
from tests.rigs.reaching import servers_at
from tests.rigs.servers import EtcdServer, NatsServer
from tests.rigs.tls import Authority
from tests.rigs.waiting import PATIENCE


def sizes(transport: asyncio.BaseTransport | None) -> set[int]:
    """Return how much a transport reads at once, and the TLS in it."""
    parts = (transport, getattr(transport, "_ssl_protocol", None))
    return {part.max_size for part in parts if hasattr(part, "max_size")}  # type: ignore[union-attr]


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_a_transport_reads_little_and_all(tmp_path: Path, tls: bool) -> None:
    data = bytes(range(256)) * 4096

    async def send(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        writer.close()

    context = ours = None
    if tls:
        authority = Authority(tmp_path)
        server_side = authority.server()
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(server_side.certificate, server_side.key)
        ours = tls_context(authority.path, None, None)
    async with await asyncio.start_server(send, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=ours)
        assert READ not in sizes(writer.transport)
        read_little(writer.transport)
        assert sizes(writer.transport) == {READ}
        assert await reader.read(-1) == data
        writer.close()


def test_a_transport_without_a_socket_is_left_alone() -> None:
    read_little(None)
    read_little(asyncio.BaseTransport())


@pytest.mark.parametrize("served", ["nats"], indirect=True)
async def test_localpuppets_client_of_nats_reads_little(served: ServerEngine) -> None:
    assert isinstance(served.server, NatsServer)
    link = NatsLink(where="", timeout=PATIENCE, must_be_tls=False)
    await link.connect(served.server.url, {}, inbox="_INBOX")
    assert sizes(link.client._socket()) == {READ}
    await link.close()


@pytest.mark.parametrize("served", ["etcd"], indirect=True)
async def test_localpuppets_client_of_etcd_reads_little(served: ServerEngine) -> None:
    assert isinstance(served.server, EtcdServer)
    connection = EtcdConnection(servers_at(served.server.url), timeout=PATIENCE)
    channel, _ = await connection.ready()
    assert sizes((await channel.__connect__()).connection._transport) == {READ}
    connection.close()


def test_headers_are_read_as_the_library_reads_them() -> None:
    raw = b"Nats-Subject: lp.a\r\nNats-Sequence:12\r\nX:\t y: z \r\nno header\r\nX: last\r\n\r\n"
    theirs = super(TolerantClient, TolerantClient)._parse_header_lines(raw)
    assert TolerantClient._parse_header_lines(raw) == theirs
    assert theirs == {"Nats-Subject": "lp.a", "Nats-Sequence": "12", "X": "last"}
