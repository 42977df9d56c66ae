"""Features of etcd: TLS, users, endpoints, quorum, lost data, leases, versions, the codec."""

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.server import Stream
from hypothesis import given
from hypothesis import strategies as st

from localpuppet.base.errors import UnavailableError
from localpuppet.fleet.bus import etcd_messages, key_value
from localpuppet.fleet.bus.etcd_bus import open_etcd, weakness
from tests.fleet.make import there
from tests.rigs.bus.etcd_double import answering, etcd_double
from tests.rigs.following import Follower
from tests.rigs.reaching import servers_at
from tests.rigs.servers import ETCD, EtcdServer, etcd_cluster, version_of
from tests.rigs.tls import Authority
from tests.rigs.waiting import PATIENCE, answered

SHORT = 2.0  # for calls that get no answer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path / "etcd") as made:
        yield made


async def test_tls_with_a_client_certificate_that_carries_a_name(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    node = authority.node("web01.example.com")
    with EtcdServer(tmp_path / "etcd", tls=authority.server()) as server:
        files = {"ca": authority.path, "certificate": node.certificate, "key": node.key}
        store = await open_etcd(servers_at(server.url, **files), timeout=PATIENCE)
        revision = await store.put("/a", b"1")
        follower = Follower(store, "/a/")
        await follower.listed()
        await store.put("/a/b", b"2")
        await follower.until_state({"/a/b": b"2"})
        await follower.stop()
        assert revision > 0
        await store.close()
        with pytest.raises(UnavailableError, match="a client without a certificate"):
            await open_etcd(servers_at(server.url, ca=authority.path), timeout=PATIENCE)
        old = authority.node("web02.example.com", at="2020-01-01")
        with pytest.raises(UnavailableError, match=r"web02.example.com.pem, which expired on 2020"):
            files |= {"certificate": old.certificate, "key": old.key}
            await open_etcd(servers_at(server.url, **files), timeout=PATIENCE)
        # The client does not trust the server, and the error says why.
        with pytest.raises(UnavailableError, match=r"TLS: .*refused: .*(issuer|self-signed).*sys"):
            await open_etcd(servers_at(server.url), timeout=PATIENCE)


def with_users(server: EtcdServer) -> None:
    """Give a server the users root and web01; web01 owns `/mine/`."""
    for line in (
        "user add root:secret",
        "user grant-role root root",
        "role add node",
        "role grant-permission node readwrite --prefix=true /mine/",
        "user add web01:word",
        "user grant-role web01 node",
        "auth enable",
    ):
        server.ctl(*line.split())


async def test_a_token_that_is_over_between_a_listing_and_its_watch(server: EtcdServer) -> None:
    with_users(server)
    store = await open_etcd(servers_at(server.url, user="web01"), timeout=PATIENCE, password="word")
    changes = store.watch("/mine/")
    assert isinstance(await anext(changes), key_value.KeyListing)
    # All tokens are over; the watch is opened with one of them.
    server.ctl("--user=root:secret", "auth", "disable")
    server.ctl("auth", "enable")
    server.ctl("--user=root:secret", "put", "/mine/a", "1")
    change = await anext(changes)
    assert isinstance(change, key_value.KeyWrite)
    assert change.entry.value == b"1"
    await changes.aclose()
    await store.close()


async def test_a_user_without_the_right_to_a_value_still_writes_others(server: EtcdServer) -> None:
    root = "--user=root:secret"
    with_users(server)
    server.ctl(root, "role", "grant-permission", "node", "readwrite", "/other/a")
    store = await open_etcd(servers_at(server.url, user="web01"), timeout=PATIENCE, password="word")
    # From 3.5.28 on etcd shows its version to its root only.
    version = version_of(ETCD)
    is_hidden = tuple(map(int, version.split("."))) >= (3, 5, 28)
    assert store.warnings == (weakness(None if is_hidden else version),)
    for key in ("/other/a", "/mine/a"):
        await store.put(key, b"1", ttl=600.0)
    server.ctl(root, "role", "revoke-permission", "node", "/other/a")
    await store.put("/mine/a", b"2", ttl=600.0)
    with pytest.raises(key_value.RefusedError):
        await store.put("/other/a", b"2", ttl=600.0)
    await store.close()


async def test_users_and_tokens_that_expire(tmp_path: Path) -> None:
    with EtcdServer(tmp_path / "etcd", options=["--auth-token-ttl=1"]) as server:
        with_users(server)
        servers = servers_at(server.url, user="web01")
        store = await open_etcd(servers, timeout=PATIENCE, password="word")
        await store.put("/mine/a", b"1", ttl=3600.0)
        with pytest.raises(UnavailableError, match=r"permission denied .*role"):
            await store.put("/other/a", b"1")
        with pytest.raises(UnavailableError):
            await anext(store.watch("/other/"))
        follower = Follower(store, "/mine/")
        await follower.listed()
        # Users are changed, and the token's time is over: both make it worthless.
        server.ctl("--user=root:secret", "user", "add", "web02:word")
        await asyncio.sleep(2.5)
        await store.put("/mine/b", b"2")
        await follower.until_state({"/mine/a": b"1", "/mine/b": b"2"})
        await follower.stop()
        await store.close()
        with pytest.raises(UnavailableError, match="authentication failed"):
            await (await open_etcd(servers, timeout=PATIENCE, password="x")).get("/mine/a")


async def listing(store: key_value.KeyValue, prefix: str) -> key_value.Change:
    """Return the first change of a new watch."""
    async with aclosing(store.watch(prefix)) as changes:
        return await anext(changes)


async def test_the_client_tries_all_members_and_a_minority_gives_no_answer(tmp_path: Path) -> None:
    """Nothing here depends on how fast the members elect another leader."""
    members = etcd_cluster(tmp_path, 3)
    for member in members:
        member.start(wait=False)
    for member in members:
        member.wait_healthy()
    try:
        servers = servers_at(*(member.url for member in members))
        store = await answered(lambda: open_etcd(servers, timeout=PATIENCE))
        impatient = await answered(lambda: open_etcd(servers, timeout=SHORT))
        await answered(lambda: store.put("/a/b", b"1"))
        members[0].kill()
        assert there(await answered(lambda: store.get("/a/b"))).value == b"1"
        assert isinstance(await answered(lambda: listing(store, "/a/")), key_value.KeyListing)
        members[1].kill()
        calls = (impatient.get("/a/b"), impatient.list("/a/"), impatient.put("/a/b", b"2"))
        for problem in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(problem, UnavailableError)
        await impatient.close()
        await store.close()
    finally:
        for member in members:
            member.stop()


async def test_a_full_server_refuses_writes_and_says_so(tmp_path: Path) -> None:
    with EtcdServer(tmp_path, options=["--quota-backend-bytes=2097152"]) as server:
        store = await open_etcd(servers_at(server.url), timeout=PATIENCE)
        assert await store.fullness() == ""
        with pytest.raises(key_value.FullError, match="database space exceeded"):
            for i in range(40):
                await store.put(f"/a/{i}", bytes(200_000))
        assert "NOSPACE" in await store.fullness()
        await store.close()


async def test_a_lease_that_another_user_ended_stops_no_write(server: EtcdServer) -> None:
    store = await open_etcd(servers_at(server.url), timeout=PATIENCE)
    await store.put("/a", b"1", ttl=3600.0)
    (lease,) = server.ctl("lease", "list").splitlines()[1:]
    server.ctl("lease", "revoke", lease)
    revision = await store.put("/a", b"2", ttl=3600.0)
    (lease,) = server.ctl("lease", "list").splitlines()[1:]
    server.ctl("lease", "revoke", lease)
    assert await store.add_if_new("/a", b"3", ttl=3600.0) is not None
    entry = there(await store.get("/a"))
    assert (entry.value, entry.revision > revision) == (b"3", True)
    await store.close()


async def test_a_server_that_shows_its_version_only_to_root_works_with_a_warning() -> None:
    """Version 3.5.28 and later do that if there are roles."""

    async def refuse(stream: Stream[bytes, bytes]) -> None:
        await stream.recv_message()
        raise GRPCError(Status.PERMISSION_DENIED, "etcdserver: permission denied")

    page = etcd_messages.encode((1, etcd_messages.encode((1, 1), (3, 5))))
    methods = {etcd_messages.STATUS: refuse, etcd_messages.RANGE: answering(page)}
    async with etcd_double(methods) as url:
        store = await open_etcd(servers_at(url), timeout=PATIENCE)
        assert await store.get("/a") is None
        (warning,) = store.warnings
        assert "its version to etcd's root only" in warning
        await store.close()


@given(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=300))
def test_the_wire_format_is_encoded_and_decoded(number: int, blob: bytes) -> None:
    fields = etcd_messages.decode(etcd_messages.encode((1, number), (64, blob)))
    assert etcd_messages.number(fields, 1) == number
    assert etcd_messages.blob(fields, 64) == blob


def test_a_negative_revision_is_rejected() -> None:
    header = etcd_messages.encode((1, etcd_messages.encode((3, -1))))
    with pytest.raises(ValueError, match="not a revision"):
        etcd_messages.read_revision(header)


@given(st.binary(max_size=60))
def test_rubbish_is_refused_or_read_and_nothing_else(data: bytes) -> None:
    try:
        etcd_messages.decode(data)
    except ValueError:
        return


@given(st.binary(min_size=1, max_size=60), st.data())
def test_a_message_that_is_cut_off_is_refused(blob: bytes, data: st.DataObject) -> None:
    whole = etcd_messages.encode((1, blob))
    with pytest.raises(ValueError, match="cut off"):
        etcd_messages.decode(whole[: data.draw(st.integers(1, len(whole) - 1))])
