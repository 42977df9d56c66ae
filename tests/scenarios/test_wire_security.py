"""Nodes kept apart by the documented set-ups: what they need works, and all else is refused.

The refused requests go below localpuppet's own stores, so that it is the server that refuses. For
each, a test shows that the server does it for the member that may.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.machine.process_table import SystemClock
from localpuppet.fleet.bus import key_value, layout
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.inventory import presence
from localpuppet.fleet.leases.lease import Leases
from localpuppet.fleet.requests import request_client as exchange
from localpuppet.fleet.triggers import sending
from localpuppet.fleet.trust.signing import MessageSigner
from tests.doubles.identities import person
from tests.doubles.memory_store import FirstStore
from tests.rigs.bus.raw import raw
from tests.rigs.bus.wire import (
    ALICE,
    LB01,
    REFUSAL,
    WEB01,
    WEB02,
    EtcdWire,
    NatsWire,
    Site,
    Wire,
    check_refusal,
)
from tests.rigs.following import Follower
from tests.rigs.servers import NEW_NATS, OLD_NATS
from tests.rigs.waiting import PATIENCE

TRIGGERS = "/puppet_trigger/events/hosts"
Make = Callable[[Path], NatsWire | EtcdWire]
WIRES: dict[str, Make] = {
    "nats-debian": lambda directory: NatsWire(directory, OLD_NATS),
    "nats": lambda directory: NatsWire(directory, NEW_NATS),
    "etcd": EtcdWire,
}


@pytest.fixture(scope="module", params=WIRES)
def wire(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NatsWire | EtcdWire]:
    """Each engine as documented, with a stream or roles; one server for all tests here."""
    made = WIRES[request.param](tmp_path_factory.mktemp("wire") / request.param)
    made.start()
    asyncio.run(_visit(made))
    yield made
    made.server.stop()


async def _visit(wire: Wire) -> None:
    """Let the admin connect once: that makes the stream of NATS."""
    await (await wire.connect(wire.admin)).close()


@asynccontextmanager
async def store(wire: Wire, name: str) -> AsyncGenerator[KeyValue, None]:
    """Return the store as a member uses it."""
    kv = await wire.connect(name)
    try:
        yield kv
    finally:
        await kv.close()


def signer(name: str) -> MessageSigner:
    return person(name).signer


def call(*hosts: str) -> sending.Outgoing:
    return sending.Outgoing(
        hosts=tuple(NodeName(host) for host in hosts),
        tags=(),
        ttl=180,
        keyprefix="/puppet_trigger/events",
        keyttl=180,
    )


async def send(kv: KeyValue, sender: str, *hosts: str) -> sending.SendResult:
    return await sending.send(
        call(*hosts),
        kv=kv,
        signer=signer(sender),
        paths=[()],
        clock=SystemClock(),
        uuid="3f2504e0-4f89-41d3-9a0c-0305e82c3301",
    )


async def test_presence_is_published_and_received(wire: Wire) -> None:
    async with store(wire, WEB01) as web01, store(wire, LB01) as lb01:
        await presence.announce(web01, NodeName(WEB01), b"one")
        follower = Follower(lb01, layout.PRESENCE)
        await follower.listed()
        await presence.announce(web01, NodeName(WEB01), b"two")
        await follower.until(lambda: follower.state.get(layout.PRESENCE + WEB01) == b"two")
        assert (await presence.nodes(lb01))[WEB01] == b"two"
        await follower.stop()


async def test_triggers_reach_their_receiver_also_after_a_restart_of_the_server(wire: Wire) -> None:
    prefix = layout.triggers_for(NodeName(LB01), "/puppet_trigger/events")
    async with store(wire, WEB01) as web01, store(wire, WEB02) as web02:
        async with store(wire, LB01) as lb01:
            follower = Follower(lb01, prefix)
            await follower.listed()
            await send(web01, WEB01, LB01)
            await follower.until(lambda: prefix + WEB01 in follower.state)
            wire.server.kill()
            await follower.failed()
            wire.server.start()
            await send(web02, WEB02, LB01)
            again = Follower(lb01, prefix, follower.revision)
            await again.until(lambda: prefix + WEB02 in again.state)
            await again.stop()
        async with store(wire, LB01) as lb01:  # an agent that was offline
            fresh = Follower(lb01, prefix)
            await fresh.until(lambda: {prefix + WEB01, prefix + WEB02} <= set(fresh.state))
            assert {entry.key for entry in (await lb01.list(prefix)).entries} == set(fresh.state)
            await fresh.stop()


async def test_a_person_asks_and_a_node_replies(wire: Wire) -> None:
    identifier = os.urandom(8).hex()
    async with store(wire, ALICE) as alice, store(wire, WEB01) as web01:
        requests = layout.requests_for(NodeName(WEB01))

        async def answer() -> None:
            async with aclosing(web01.watch(requests)) as changes:
                async for change in changes:
                    for entry in key_value.entries(change):
                        caller, request = entry.key.removeprefix(requests).split("/")
                        await exchange.reply(
                            web01,
                            b"yes: " + entry.value,
                            caller=caller,
                            node=NodeName(WEB01),
                            request=request,
                        )

        answering = asyncio.create_task(answer())
        async with exchange.Replies(alice, ALICE, NodeName(WEB01)) as hearing:
            asking = hearing.ask(
                b"?",
                at=layout.requests_of(ALICE, NodeName(WEB01)) + identifier,
                node=NodeName(WEB01),
                request=identifier,
                ttl=600.0,
            )
            async with aclosing(asking) as replies:
                assert await anext(replies) == b"yes: ?"
        answering.cancel()
        await asyncio.wait([answering])
        await send(alice, ALICE, WEB01, LB01)


class _Tomorrow(SystemClock):
    """A clock by which the bus is old, so that it gives leases."""

    def now(self) -> datetime:
        return super().now() + timedelta(days=1)


async def test_leases(wire: Wire) -> None:
    async with store(wire, WEB01) as first, store(wire, WEB02) as second:
        mine = Leases(first, _Tomorrow(), holder=WEB01, session="1", stores=FirstStore())
        other = Leases(second, _Tomorrow(), holder=WEB02, session="2", stores=FirstStore())
        held = await mine.take("db-migrate", ttl=600.0)
        assert held is not None
        assert await other.take("db-migrate", ttl=600.0) is None
        assert await other.holder("db-migrate") == WEB01
        waiting = asyncio.create_task(other.wait("db-migrate", ttl=600.0, patience=PATIENCE))
        renewed = await mine.renew(held)
        assert renewed is not None
        assert await mine.give_back(renewed)
        taken = await waiting
        assert taken is not None
        assert await mine.renew(renewed) is None
        assert await other.give_back(taken)


async def test_rollout_commands_reach_their_receiver(wire: Wire) -> None:
    """Sent from one machine of Alice's, received and answered on another."""
    async with store(wire, ALICE) as there, store(wire, ALICE) as here:
        place = layout.commands_of(ALICE, ALICE) + "20261122T110000Z-0a1b/1"
        async with aclosing(there.watch(layout.commands_to(ALICE), parts=True)) as changes:
            await anext(changes)
            await here.put(place, b"stop", ttl=3600.0)
            heard = key_value.entries(await anext(changes))
        assert [(entry.key, entry.value) for entry in heard] == [(place, b"stop")]
        name = NodeName(ALICE)
        await exchange.reply(there, b"yes", caller=ALICE, node=name, request="1")
        answer = await here.get(layout.replies_of(name, ALICE) + "1")
        assert answer is not None
        assert answer.value == b"yes"


# Member, verb, key. Each is possible, and is for the admin; see `test_the_admin_may`.
REFUSED = [
    # other nodes' presence
    (WEB01, "write", f"/localpuppet/presence/{WEB02}"),
    (ALICE, "write", f"/localpuppet/presence/{WEB02}"),
    # other nodes' triggers
    (WEB01, "read", f"{TRIGGERS}/{LB01}/{WEB02}"),
    (WEB01, "read", f"{TRIGGERS}/{LB01}/{WEB01}"),
    (WEB01, "list", f"{TRIGGERS}/{LB01}/"),
    (WEB01, "watch", f"{TRIGGERS}/{LB01}/"),
    (WEB01, "list", f"{TRIGGERS}/"),
    (WEB01, "watch", f"{TRIGGERS}/"),
    (ALICE, "list", f"{TRIGGERS}/{LB01}/"),
    # a receiver that the roster does not name
    (WEB01, "write", f"{TRIGGERS}/{WEB02}/{WEB01}"),
    (LB01, "write", f"{TRIGGERS}/{WEB01}/{LB01}"),
    (WEB01, "write", f"{TRIGGERS}/{WEB01}/{WEB01}"),
    # another sender's name
    (WEB01, "write", f"{TRIGGERS}/{LB01}/{WEB02}"),
    (WEB01, "write", f"{TRIGGERS}/{LB01}/{ALICE}"),
    # commands to another's rollout, or in another's name; its checkpoint
    (WEB01, "write", f"/localpuppet/commands/{ALICE}/{WEB01}/x/1"),
    (WEB01, "write", f"/localpuppet/commands/{ALICE}/{ALICE}/x/1"),
    (WEB01, "watch", f"/localpuppet/commands/{ALICE}/"),
    (WEB01, "write", f"/localpuppet/rollouts/{ALICE}/x"),
    # requests to others, or in another's name, or without being allowed to ask at all
    (WEB01, "read", f"/localpuppet/requests/{WEB02}/{ALICE}/1"),
    (WEB01, "list", f"/localpuppet/requests/{WEB02}/"),
    (WEB01, "watch", f"/localpuppet/requests/{WEB02}/"),
    (WEB01, "write", f"/localpuppet/requests/{WEB02}/{WEB01}/1"),
    (WEB01, "write", f"/localpuppet/requests/{WEB02}/{ALICE}/1"),
    (ALICE, "write", f"/localpuppet/requests/{WEB02}/{WEB01}/1"),
    (ALICE, "list", f"/localpuppet/requests/{WEB02}/"),
    # replies to others, and replies in another node's name
    (WEB01, "read", f"/localpuppet/replies/{ALICE}/{WEB02}/1"),
    (WEB01, "list", f"/localpuppet/replies/{ALICE}/"),
    (WEB01, "watch", f"/localpuppet/replies/{ALICE}/{WEB01}/"),
    (WEB01, "write", f"/localpuppet/replies/{ALICE}/{WEB02}/1"),
    (WEB01, "write", f"/localpuppet/replies/{WEB02}/{WEB01}/1"),
    # leases that the roster does not give
    (WEB01, "write", "/localpuppet/leases/other"),
    (LB01, "write", "/localpuppet/leases/db-migrate"),
    # everything
    (WEB01, "list", "/localpuppet/"),
    (WEB01, "watch", "/localpuppet/"),
    (WEB01, "write", "/localpuppet/other"),
]


@pytest.mark.parametrize(("who", "verb", "key"), REFUSED)
async def test_the_server_refuses(wire: NatsWire | EtcdWire, who: str, verb: str, key: str) -> None:
    at = key if not key.endswith("/") else f"{key}x/1"
    async with store(wire, wire.admin) as admin, raw(wire, who) as client:
        before = await admin.put(at, b"there", ttl=3600.0)
        if verb == "write":
            assert await client.write(key, b"forged") is None
        else:
            assert await getattr(client, verb)(key) is None
        entry = await admin.get(at)
        assert entry is not None
        assert (entry.value, entry.revision) == (b"there", before)


async def test_the_admin_may(wire: NatsWire | EtcdWire) -> None:
    """The counterpart of the refusals: the same calls succeed for the admin."""
    async with raw(wire, wire.admin) as client:
        key = f"/localpuppet/presence/{WEB02}"
        assert await client.write(key, b"1") is not None
        assert await client.read(key) is not None
        assert await client.list("/localpuppet/presence/") is not None
        assert await client.watch("/localpuppet/presence/") is not None


async def test_a_node_reads_its_own_keys_below_localpuppets_store(
    wire: NatsWire | EtcdWire,
) -> None:
    async with store(wire, wire.admin) as admin, raw(wire, WEB01) as client:
        await admin.put(f"{TRIGGERS}/{WEB01}/{ALICE}", b"for web01", ttl=3600.0)
        assert await client.read(f"{TRIGGERS}/{WEB01}/{ALICE}") is not None
        assert await client.list(f"{TRIGGERS}/{WEB01}/") is not None
        assert await client.watch(f"{TRIGGERS}/{WEB01}/") is not None


async def test_localpuppets_store_reports_a_refusal_at_once(wire: Wire) -> None:
    async with store(wire, WEB01) as web01:
        for refused in (
            send(web01, WEB01, WEB02),
            web01.list(f"{TRIGGERS}/{LB01}/"),
            anext(web01.watch(f"{TRIGGERS}/{LB01}/")),
            web01.get("/localpuppet/other"),
        ):
            with pytest.raises(UnavailableError, match="permission") as caught:
                await refused
            assert "\n" not in str(caught.value)
        # The connection has not suffered.
        await presence.announce(web01, NodeName(WEB01), b"still here")


async def test_a_client_without_a_certificate(wire: Wire) -> None:
    with pytest.raises(UnavailableError):
        await wire.connect(None, timeout=REFUSAL)


async def test_a_certificate_of_another_ca(wire: Wire, tmp_path: Path) -> None:
    stranger = Site(tmp_path).issue(WEB01)
    with pytest.raises(UnavailableError):
        await wire.connect(WEB01, identity=stranger, timeout=REFUSAL)


async def test_a_name_that_is_not_in_the_roster(wire: Wire) -> None:
    """A certificate of the site's CA is not enough."""
    with pytest.raises(UnavailableError):
        async with store(wire, "db01.example.com") as kv:
            await kv.list(layout.PRESENCE)


async def test_a_server_whose_certificate_is_of_another_ca(wire: Wire, tmp_path: Path) -> None:
    ca = Site(tmp_path).path
    await check_refusal(
        lambda seconds: wire.connect(WEB01, ca=ca, timeout=seconds),
        r"(?i)certificate.verify|certificate is refused",
    )


async def test_a_server_of_another_name(wire: Wire) -> None:
    url = wire.url.replace("localhost", "127.0.0.1")
    await check_refusal(
        lambda seconds: wire.connect(WEB01, url=url, timeout=seconds),
        r"(?i)certificate.verify|certificate is refused|IP address mismatch",
    )


async def test_a_client_in_clear_text(wire: Wire) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", wire.server.port)
    writer.write(b'CONNECT {"verbose":true}\r\nPING\r\n')
    if wire.engine == "etcd":
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    async with asyncio.timeout(PATIENCE):
        said = await _read_to_the_end(reader)  # the server hangs up
    writer.close()
    assert b"PONG" not in said
    assert b"+OK" not in said


async def _read_to_the_end(reader: asyncio.StreamReader) -> bytes:
    """Return what a peer sends until it closes the connection, in any way."""
    said = b""
    with suppress(ConnectionResetError):
        while chunk := await reader.read(65536):
            said += chunk
    return said
