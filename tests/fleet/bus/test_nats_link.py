"""A connection to NATS: what its end, a refusal and a cancellation do to waiting calls."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from localpuppet.base.errors import UnavailableError
from localpuppet.fleet.bus.nats_bus import open_nats
from localpuppet.fleet.bus.nats_link import NatsLink, StalledError
from tests.rigs.following import follow
from tests.rigs.reaching import servers_at
from tests.rigs.servers import NatsConfig, NatsServer
from tests.rigs.tls import Authority
from tests.rigs.waiting import PATIENCE, answered

SHORT = 5.0  # where the server hangs
ADMIN_AND_WEB01 = """
authorization: {
  users: [
    { user: admin, password: secret }
    { user: web01, password: word, permissions: {
        publish: ">", subscribe: ["lp-live.>", "_INBOX_web01.>"] } }
  ]
}
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path / "nats") as made:
        yield made


async def linked(url: str) -> NatsLink:
    link = NatsLink(where=url, timeout=PATIENCE, must_be_tls=False)
    await link.connect(url, {}, inbox="_INBOX")
    return link


async def test_a_tls_server_that_hangs_is_noticed(tmp_path: Path) -> None:
    """Without TLS's good-bye, for which asyncio would wait half a minute."""
    authority = Authority(tmp_path)
    node = authority.node("web01.example.com")
    with NatsServer(tmp_path / "nats", config=NatsConfig(tls=authority.server())) as server:
        files = {"ca": authority.path, "certificate": node.certificate, "key": node.key}
        servers = servers_at(server.url, **files)
        store = await answered(lambda: open_nats(servers, timeout=SHORT))
        follower = await follow(store, "/a/")
        server.freeze()
        assert isinstance(await follower.failed(), UnavailableError)
        server.thaw()
        await store.close()


async def test_a_connection_lost_while_much_is_sent_is_lost_for_all(server: NatsServer) -> None:
    store = await answered(lambda: open_nats(servers_at(server.url), timeout=SHORT))
    follower = await follow(store, "/a/")
    server.freeze()
    # More than the kernel takes: it stays with us, and cannot be sent before the end.
    puts = [asyncio.create_task(store.put(f"/b/{i}", b"x" * 500_000)) for i in range(30)]
    assert isinstance(await follower.failed(), UnavailableError)
    for result in await asyncio.gather(*puts, return_exceptions=True):
        assert isinstance(result, UnavailableError)
    server.thaw()
    await store.close()


async def test_a_user_that_may_not_read_its_replies_gets_an_error_at_once(tmp_path: Path) -> None:
    refused = pytest.raises(UnavailableError, match="permissions violation for subscription")
    config = NatsConfig(text=ADMIN_AND_WEB01)
    with NatsServer(tmp_path / "nats", config=config) as server, refused:
        await open_nats(servers_at(server.url, user="web01"), timeout=PATIENCE, password="word")


async def test_a_refused_watch_stays_refused_when_another_of_it_ends(tmp_path: Path) -> None:
    text = ADMIN_AND_WEB01.replace('"lp-live.>", ', "")
    with NatsServer(tmp_path / "nats", config=NatsConfig(text=text)) as server:
        link = NatsLink(where="nats", timeout=PATIENCE, must_be_tls=False)
        await link.connect(server.url, {"user": "web01", "password": "word"}, inbox="_INBOX_web01")

        def heard(_message: object) -> None:
            return

        one = await link.subscribe("lp-live.a.>", heard)
        two = await link.subscribe("lp-live.a.>", heard)
        await link.request("$JS.API.INFO")
        for subscription in (one, two):
            with pytest.raises(UnavailableError, match="permissions violation"):
                link.check(subscription)
            await link.unsubscribe(subscription)
        await link.close()


async def test_a_lost_consumer_is_an_error_and_not_the_end_of_a_listing(server: NatsServer) -> None:
    link = await linked(server.url)
    store = await open_nats(servers_at(server.url), timeout=PATIENCE)
    gone = "$JS.API.CONSUMER.MSG.NEXT.localpuppet.gone"
    with pytest.raises(StalledError):
        await anext(link.batches(gone, {"batch": 5, "no_wait": True}, size=5))
    await store.close()
    await link.close()


async def test_a_value_that_the_server_does_not_take_is_no_lost_connection(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats", config=NatsConfig(max_payload="64KB")) as server:
        store = await open_nats(servers_at(server.url), timeout=PATIENCE)
        with pytest.raises(UnavailableError, match="payload") as caught:
            await store.put("/a/b", b"x" * 100_000)
        assert "lost" not in str(caught.value)
        await store.close()
