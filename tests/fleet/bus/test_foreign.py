"""Values that others put into a store with other clients must not harm its readers."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from localpuppet.base.errors import UnavailableError
from localpuppet.fleet.bus import etcd_messages
from localpuppet.fleet.bus.bus_limits import MAX_NATS_KEYS, MAX_VALUE
from localpuppet.fleet.bus.etcd_bus import open_etcd
from localpuppet.fleet.bus.etcd_calls import EtcdConnection
from localpuppet.fleet.bus.etcd_messages import encode
from localpuppet.fleet.bus.jetstream import NatsFeed, NatsStream
from localpuppet.fleet.bus.jetstream_messages import PASSING
from localpuppet.fleet.bus.key_value import MAX_REVISION, KeyValue, KeyWrite
from localpuppet.fleet.bus.nats_bus import open_nats
from localpuppet.fleet.bus.nats_link import NatsConnection
from tests.rigs.following import Follower
from tests.rigs.reaching import servers_at
from tests.rigs.servers import NEW_NATS, OLD_NATS, EtcdServer, NatsServer
from tests.rigs.waiting import PATIENCE

HELLO = b'CONNECT {"verbose": false, "headers": true, "no_responders": true}\r\n'
# Subject, headers as they are on the wire, and a body that is not a value.
FOREIGN: dict[str, tuple[bytes, ...]] = {
    "a ttl that is a word": (b"lp.a.x", b"", b"soon\n1"),
    "a ttl that is no number": (b"lp.a.x", b"", b"nan\n1"),
    "a ttl without an end": (b"lp.a.x", b"", b"9" * 400 + b".000\n1"),
    "a body without a line": (b"lp.a.x", b"", b"1"),
    "no body": (b"lp.a.x", b"", b""),
    "a subject that is no text": (b"lp.a.\xff\xfe", b""),
    "a subject that is no key": (b"lp.a.x y".replace(b" ", b"!"), b""),
    "a header as long as a header may be": (b"lp.a.!",
     b"NATS/1.0\r\n" + b"a:" * 30_000 + b"\r\n\r\n"),
    "headers that are none": (b"lp.a.!", b"rubbish\r\n\r\n"),
    "headers that are short": (b"lp.a.!", b"x\r\n\r\n"),
    "a status that is no text": (b"lp.a.!", b"NATS/1.0 \xff\xff\xff\r\n\r\n"),
    "a reason that is no text": (b"lp.a.!", b"NATS/1.0 503 \xff\xff\r\n\r\n"),
    "the status of an empty batch": (b"lp.a.!", b"NATS/1.0 404 No Messages\r\n\r\n"),
    "the status of an error": (b"lp.a.!", b"NATS/1.0\r\nStatus: 500\r\n\r\n"),
    "a sequence of 64 bits, as if the server had repeated it": (b"lp-live.a.good",
     b"NATS/1.0\r\nNats-Sequence: 9223372036854775808\r\nNats-Subject: lp.a.good\r\n\r\n"),
    "sequence and subject of another": (b"lp.a.!",
     b"NATS/1.0\r\nNats-Sequence: 1\r\nNats-Subject: lp.a.good\r\n\r\n"),
}  # fmt: skip


@pytest.fixture(params=[OLD_NATS, NEW_NATS], ids=["nats-debian", "nats"])
def nats(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path / "nats", program=request.param) as server:
        yield server


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path / "etcd") as server:
        yield server


async def publish(server: NatsServer, subject: bytes, headers: bytes, body: bytes = b"\n1") -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    size = b"%d" % (len(headers) + len(body))
    verb = b"HPUB" if headers else b"PUB"
    if headers:
        size = b"%d %s" % (len(headers), size)
    message = b"%s %s %s\r\n%s%s\r\n" % (verb, subject, size, headers, body)
    writer.write(HELLO + message + b"PING\r\n")
    while await reader.readline() != b"PONG\r\n":
        pass
    writer.close()


async def check(store: KeyValue, follower: Follower) -> None:
    """Check that the store delivers, lists and reads localpuppet's values and no others."""
    await store.put("/a/good", b"2")
    await follower.until_state({"/a/good": b"2"})
    expected = [("/a/good", b"2")]
    assert [(one.key, one.value) for one in (await store.list("/a/")).entries] == expected
    found = await store.get("/a/good")
    assert found is not None and found.value == b"2"
    told = [one.entry.revision for one in follower.changes if isinstance(one, KeyWrite)]
    assert all(revision <= MAX_REVISION for revision in told)


async def test_foreign_messages_on_nats(nats: NatsServer) -> None:
    store = await open_nats(servers_at(nats.url), timeout=PATIENCE)
    for what, message in FOREIGN.items():
        await store.put("/a/good", b"1")
        follower = Follower(store, "/a/")
        await follower.listed()
        await publish(nats, *message)
        try:
            await check(store, follower)
        except (AssertionError, TimeoutError, UnavailableError) as error:
            error.add_note(what)
            raise
        await follower.stop()
        late = Follower(store, "/a/")
        await late.until_state({"/a/good": b"2"})
        await late.stop()
    await store.close()


ELSEWHERE = b"NATS/1.0\r\nNats-Sequence: 9\r\nNats-Subject: lp.b.good\r\n\r\n"


@pytest.mark.parametrize("headers", [b"", ELSEWHERE], ids=["no message", "of another place"])
async def test_a_flood_of_forged_repetitions_costs_one_look(
    nats: NatsServer, headers: bytes
) -> None:
    """Members can have the server send its answers to what others subscribe to."""
    servers = servers_at(nats.url)
    stream = NatsStream(NatsConnection(servers, timeout=PATIENCE), servers, PASSING)
    await stream.open()
    async with NatsFeed(stream, "/a/", largest=MAX_VALUE) as feed:
        for _ in range(20):
            await publish(nats, b"lp-live.a.x", headers)
        await stream.state()  # its answer follows what the server has sent before
        looks = []
        while not feed.idle:
            looks.append(await feed.next())
    assert looks == [None]
    await stream.connection.close()


async def test_more_keys_than_an_answer_may_have_are_listed(nats: NatsServer) -> None:
    """Each caller can write any number of keys below the requests to a node."""
    servers = servers_at(nats.url)
    connection = NatsConnection(servers, timeout=PATIENCE)
    store = await open_nats(servers, timeout=PATIENCE)
    client = (await connection.link()).client
    for number in range(MAX_NATS_KEYS + 1):
        await client.publish(f"lp.a.eve.{number:08}{'x' * 440}", b"\n1")
    await client.flush()
    await connection.close()
    await store.put("/a/zoe", b"2")
    follower = Follower(store, "/a/")
    await follower.until(lambda: follower.state.get("/a/zoe") == b"2")
    assert len(follower.state) == MAX_NATS_KEYS + 2
    await follower.stop()
    await store.close()


async def test_a_key_whose_message_has_a_foreign_ttl_can_be_added_again(nats: NatsServer) -> None:
    store = await open_nats(servers_at(nats.url), timeout=PATIENCE)
    await publish(nats, *FOREIGN["a ttl that is a word"])
    assert await store.get("/a/x") is None
    assert await store.add_if_new("/a/x", b"2", ttl=3600.0) is not None
    await store.close()


async def test_foreign_keys_on_etcd(etcd: EtcdServer) -> None:
    store = await open_etcd(servers_at(etcd.url), timeout=PATIENCE)
    await store.put("/a/good", b"1")
    follower = Follower(store, "/a/")
    await follower.listed()
    other = EtcdConnection(servers_at(etcd.url), timeout=PATIENCE)
    # More of them than are asked for at once, and they sort behind all keys that are text.
    for number in range(1, 61):
        key = b"/a/\xff" + bytes([number])
        await other.call(etcd_messages.PUT, encode((1, key), (2, bytes(100_000))))
    await other.call(etcd_messages.PUT, encode((1, "/a/large"), (2, bytes(MAX_VALUE + 1))))
    other.close()
    await check(store, follower)
    await follower.stop()
    late = Follower(store, "/a/", follower.revision - 1)
    await late.until_state({"/a/good": b"2"})
    await late.stop()
    await store.close()
