"""How etcd keeps nodes apart: roles, other members, and a version that does not."""

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.bus import etcd_messages, layout
from localpuppet.fleet.bus.etcd_bus import EtcdKeyValue
from localpuppet.fleet.bus.etcd_calls import EtcdConnection
from localpuppet.fleet.bus.etcd_messages import encode
from localpuppet.fleet.bus.key_value import RefusedError
from localpuppet.fleet.inventory import presence
from tests.rigs.bus.wire import ALICE, LB01, ROSTER, WEB01, WEB02, EtcdWire
from tests.rigs.reaching import servers_at
from tests.rigs.waiting import PATIENCE

OTHERS = f"{layout.PRESENCE}{WEB02}"
SMALLER = f"nodes: {{{WEB01}: {{triggers: [{LB01}]}}, {LB01}: {{}}}}\n"
_REVOKE = "/etcdserverpb.Lease/LeaseRevoke"


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdWire]:
    """A member as documented."""
    made = EtcdWire(tmp_path_factory.mktemp("wire") / "etcd")
    made.start()
    yield made
    made.server.stop()


def connection(wire: EtcdWire, name: str) -> EtcdConnection:
    """Return a connection below localpuppet's store: it sends any message."""
    own = wire.identity(name)
    return EtcdConnection(
        servers_at(wire.url, ca=wire.authority.path, certificate=own.certificate, key=own.key),
        timeout=PATIENCE,
    )


LINES = f"""
role grant-permission web01-more readwrite /
user grant-role {WEB01} root
role add mine
user add mine --no-password
user delete {WEB02}
user passwd {WEB02} --interactive=false
user list
auth disable
put --prev-kv {OTHERS} forged
del {OTHERS}
put {layout.STORE} 0
del {layout.STORE}
del --prefix /localpuppet/presence/
get --prefix /
get --from-key /
defrag
endpoint hashkv
"""


def test_a_node_may_not(wire: EtcdWire) -> None:
    for line in LINES.strip().splitlines():
        done = wire.ctl(WEB01, *line.split())
        assert (done.code != 0, "permission denied" in done.err) == (True, True), line


async def test_a_node_learns_when_the_store_began_from_an_administrator(wire: EtcdWire) -> None:
    node = await wire.connect(WEB01)
    born = await node.born(layout.LEASES)
    assert born > 0
    wire.permit()
    assert await node.born(layout.LEASES) == born, "the script keeps it"
    wire.ctl(wire.admin, "del", layout.STORE)
    assert await node.born(layout.LEASES) == 0, "unknown"
    wire.permit()
    assert await node.born(layout.LEASES) >= born
    await node.close()


async def test_another_nodes_entry_cannot_be_made_to_expire(wire: EtcdWire) -> None:
    """Each value has its own lease, which only its node may end."""
    web02 = connection(wire, WEB02)
    lease = etcd_messages.read_lease(
        await web02.call(etcd_messages.GRANT, etcd_messages.grant_request(60))
    )
    await web02.call(etcd_messages.PUT, etcd_messages.put_request(OTHERS, b"there", lease))
    web01 = connection(wire, WEB01)
    with pytest.raises(UnavailableError, match="permission denied"):
        await web01.call(_REVOKE, encode((1, lease)))
    web01.close()
    await web02.call(_REVOKE, encode((1, lease)))
    web02.close()


async def test_a_password_cannot_be_used_instead(wire: EtcdWire) -> None:
    """Users have none: only a certificate proves who a client is."""
    with pytest.raises(UnavailableError, match=r"authentication|password"):
        await _authenticate(wire, WEB02, "")


async def _authenticate(wire: EtcdWire, user: str, password: str) -> None:
    own = wire.identity(WEB01)
    client = EtcdConnection(
        servers_at(
            wire.url, ca=wire.authority.path, certificate=own.certificate, key=own.key, user=user
        ),
        password=password,
        timeout=PATIENCE,
    )
    try:
        await client.call(etcd_messages.RANGE, etcd_messages.range_request(OTHERS))
    finally:
        client.close()


async def test_a_node_is_no_member_of_the_cluster(wire: EtcdWire) -> None:
    """A peer of the cluster needs no permissions, so that peers have their own CA."""
    own = wire.identity(WEB01)
    context = ssl.create_default_context(cafile=wire.directory / "peers" / "ca.pem")
    context.load_cert_chain(own.certificate, own.key)
    reader, writer = await asyncio.open_connection("localhost", wire.server.peer_port, ssl=context)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        writer.write(b"GET /members HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await writer.drain()
        if await reader.read() == b"":
            raise ConnectionResetError
    writer.close()


async def test_the_script_follows_the_roster(tmp_path: Path) -> None:
    """It also completes a role that a run before it did not grant."""
    wire = EtcdWire(tmp_path / "etcd")
    wire.start()
    try:
        assert wire.permit() == ""  # nothing to do, no output
        before = wire.ctl("root", "role", "list").out
        smaller = tmp_path / "smaller.yaml"
        smaller.write_text(SMALLER)
        web01 = await wire.connect(WEB01)
        await presence.announce(web01, NodeName(WEB01), b"1")
        await web01.put("/localpuppet/leases/db-migrate", b"1", ttl=presence.PRESENCE_TTL)
        wire.permit(smaller)
        # An open connection keeps working, with the new permissions.
        await presence.announce(web01, NodeName(WEB01), b"2")
        with pytest.raises(UnavailableError, match="permission denied"):
            await web01.put("/localpuppet/leases/db-migrate", b"1", ttl=presence.PRESENCE_TTL)
        assert sorted(wire.ctl("root", "user", "list").out.split()) == [LB01, "root", WEB01]
        after = wire.ctl("root", "role", "list").out.split()
        assert len(after) == 3
        assert set(after) != set(before.split())
        alice = await wire.connect(ALICE)
        with pytest.raises(UnavailableError):
            await alice.list(layout.PRESENCE)
        await alice.close()
        wire.permit(ROSTER)
        assert wire.ctl("root", "role", "list").out == before
        (role,) = [one for one in before.split() if one.startswith(f"localpuppet.{WEB01}.")]
        wire.ctl("root", "user", "revoke-role", WEB01, role)
        wire.ctl("root", "role", "revoke-permission", role, OTHERS.replace(WEB02, WEB01))
        wire.permit()
        await presence.announce(web01, NodeName(WEB01), b"3")
        await web01.close()
    finally:
        wire.server.stop()


async def test_localpuppet_warns_of_an_etcd_that_does_not_keep_nodes_apart(wire: EtcdWire) -> None:
    """Before 3.5.33 and 3.6.14 a transaction in a transaction is not checked against any role.

    On Debian 12 and 13 a node reads and writes what it may not. Its reader drops what it writes,
    because the right node has not signed it. The 3.5.30 of Debian 14 refuses to write, and shows no
    node its version.
    """
    admin = await wire.connect(wire.admin)
    await admin.put(OTHERS, b"secret", ttl=3600.0)
    kv = await wire.connect(WEB01)
    assert isinstance(kv, EtcdKeyValue)
    (warning,) = kv.warnings
    await kv.close()
    web01 = connection(wire, WEB01)
    read = _nested(encode((1, etcd_messages.range_request(OTHERS))))
    write = _nested(encode((2, etcd_messages.put_request(OTHERS, b"forged", 0))))
    assert b"secret" in await web01.call(etcd_messages.TXN, read)
    if is_old := "its roles do not keep nodes apart" in warning:
        assert "write it" in warning
        await web01.call(etcd_messages.TXN, write)
    else:
        assert "make sure" in warning
        with pytest.raises(RefusedError, match="permission denied"):
            await web01.call(etcd_messages.TXN, write)
    entry = await admin.get(OTHERS)
    assert entry is not None
    assert entry.value == (b"forged" if is_old else b"secret")
    web01.close()
    await admin.close()


def _nested(operation: bytes) -> bytes:
    return encode((2, encode((4, encode((2, operation))))))
