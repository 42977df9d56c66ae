"""Features of NATS: identities, subjects, the stream, expiry by the server's clock, versions."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from nats.js.api import RePublish

from localpuppet.base.errors import UnavailableError
from localpuppet.fleet.bus import jetstream
from localpuppet.fleet.bus.jetstream import BEHIND, FEW
from localpuppet.fleet.bus.jetstream_messages import JetStream, place_of
from localpuppet.fleet.bus.key_value import FullError, KeyListing, KeyValueEntry, KeyWrite
from localpuppet.fleet.bus.layout import INVENTORY
from localpuppet.fleet.bus.nats_bus import open_nats, weakness
from localpuppet.fleet.bus.nats_link import NatsConnection
from tests.rigs.following import Follower
from tests.rigs.reaching import servers_at
from tests.rigs.servers import NEW_NATS, OLD_NATS, NatsConfig, NatsServer, version_of
from tests.rigs.waiting import PATIENCE

SHORT = 2.0  # if no server answers
USERS = """
authorization: {
  users: [
    { user: admin, password: secret }
    { user: web01, password: word, permissions: {
        publish: ["lp.mine.>", "$JS.API.STREAM.INFO.localpuppet",
                  "$JS.API.DIRECT.GET.localpuppet.lp.mine.>",
                  "$JS.API.CONSUMER.CREATE.localpuppet.*.lp.mine.>",
                  "$JS.API.CONSUMER.DELETE.localpuppet.*",
                  "$JS.API.CONSUMER.MSG.NEXT.localpuppet.*"]
        subscribe: ["lp-live.mine.>", "_INBOX_web01.>"] } }
  ]
}
"""


@pytest.fixture(params=[OLD_NATS, NEW_NATS], ids=["nats-debian", "nats"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path / "nats", program=request.param) as made:
        yield made


def connection(server: NatsServer) -> NatsConnection:
    return NatsConnection(servers_at(server.url), inbox="_INBOX", timeout=PATIENCE)


async def counts(server: NatsServer) -> tuple[int, int]:
    link = await connection(server).link()
    info = await link.client.jetstream().stream_info("localpuppet")
    await link.close()
    return info.state.consumer_count, info.state.messages


@pytest.mark.parametrize("program", [OLD_NATS, NEW_NATS], ids=["nats-debian", "nats"])
async def test_a_user_reaches_only_what_it_may(tmp_path: Path, program: Path) -> None:
    with NatsServer(tmp_path / "nats", program=program, config=NatsConfig(text=USERS)) as server:
        root, web01 = (servers_at(server.url, user=user) for user in ("admin", "web01"))
        admin = await open_nats(root, timeout=PATIENCE, password="secret")
        store = await open_nats(web01, timeout=PATIENCE, password="word", inbox="_INBOX_web01")
        follower = Follower(store, "/mine/")
        await follower.listed()
        await admin.put("/mine/a.b", b"1")
        await follower.until_state({"/mine/a.b": b"1"})
        await store.put("/mine/c", b"2", ttl=3600.0)
        assert len((await store.list("/mine/")).entries) == 2
        assert await store.get("/mine/c") is not None
        await admin.put("/other/a", b"1")
        for refused in (
            store.put("/other/a", b"2"),
            store.get("/other/a"),
            store.list("/other/"),
            anext(store.watch("/other/")),
        ):
            with pytest.raises(UnavailableError, match="permissions violation"):
                await refused
        await follower.stop()
        await store.close()
        await admin.close()
        with pytest.raises(UnavailableError, match="credentials"):
            await open_nats(web01, timeout=PATIENCE, password="wrong")


@pytest.mark.parametrize("keys", [1, FEW + 1])
async def test_reading_leaves_no_consumers_behind(server: NatsServer, keys: int) -> None:
    store = await open_nats(servers_at(server.url), timeout=PATIENCE)
    for i in range(keys):
        await store.put(f"/a/{i}", b"1", ttl=3600.0)
    follower = Follower(store, "/a/")
    await follower.listed()
    for _ in range(10):
        assert len((await store.list("/a/")).entries) == keys
        await store.get("/a/0")
    assert await counts(server) == (0, keys)
    assert store.warnings == tuple(filter(None, [weakness(version_of(server.program))]))
    await follower.stop()
    await store.close()


async def test_a_watcher_that_lags_behind_misses_no_change(server: NatsServer) -> None:
    """More changes than the queue holds: the client reads the rest when there is room."""
    store = await open_nats(servers_at(server.url), timeout=PATIENCE)
    other = await open_nats(servers_at(server.url), timeout=PATIENCE)
    changes = store.watch("/a/")
    await anext(changes)
    keys = [f"/a/{i}" for i in range(BEHIND + 300)]
    for start in range(0, len(keys), 50):
        await asyncio.gather(*(other.put(key, b"1") for key in keys[start : start + 50]))
    await store.list("/a/")  # when this returns, the client has received all of them
    told: list[KeyValueEntry] = []
    while len(told) < len(keys):
        change = await anext(changes)
        assert isinstance(change, KeyWrite)
        told.append(change.entry)
    assert {entry.key for entry in told} == set(keys)
    revisions = [entry.revision for entry in told]
    assert revisions == sorted(set(revisions))
    await changes.aclose()
    await store.close()
    await other.close()


async def test_a_write_that_another_stream_takes_is_an_error(server: NatsServer) -> None:
    """An operator gave the subjects to an unused stream: an answer alone does not prove a write."""
    link = await connection(server).link()
    stream = link.client.jetstream()
    republish = RePublish(src="x.>", dest="x-live.>")
    await stream.add_stream(
        name="localpuppet", subjects=["x.>"], allow_direct=True, republish=republish
    )
    await stream.add_stream(name="other", subjects=["lp.>"])
    store = await open_nats(servers_at(server.url), timeout=PATIENCE)
    with pytest.raises(UnavailableError, match="in the stream other"):
        await store.put("/a/b", b"1")
    await store.close()
    await link.close()


async def test_a_lost_stream_is_created_again(server: NatsServer) -> None:
    store = await open_nats(servers_at(server.url), timeout=PATIENCE)
    for i in range(10):
        await store.put(f"/a/{i}", b"")
    follower = Follower(store, "/a/")
    await follower.listed()
    server.kill()
    await follower.failed()
    shutil.rmtree(server.directory / "data")
    server.start()
    other = await open_nats(servers_at(server.url), timeout=PATIENCE)
    for i in range(20):  # a higher revision than before: only the stream's creation differs
        await other.put("/a/new", b"%d" % i)
    again = Follower(store, "/a/", follower.revision)
    await again.until_state({"/a/new": b"19"})
    assert isinstance(again.changes[0], KeyListing)
    await again.stop()
    await store.close()
    await other.close()


@pytest.mark.parametrize("prefix", ["/a/", INVENTORY])
async def test_a_stream_that_is_replaced_under_a_live_connection_ends_a_watch(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    monkeypatch.setattr(jetstream, "LOOK", 86400.0)  # the server reports it
    store = await open_nats(servers_at(server.url), timeout=PATIENCE)
    await store.put(f"{prefix}1", b"")
    born = await store.born(prefix)
    follower = Follower(store, prefix)
    await follower.listed()
    operator = connection(server)
    stream = "localpuppet" + place_of(prefix).suffix
    await JetStream(operator).call(f"STREAM.DELETE.{stream}", {})
    await operator.close()
    assert "its stream was replaced" in str(await follower.failed())
    assert await store.born(prefix) > born
    assert not (await store.list(prefix)).entries
    await store.close()


async def test_a_full_stream_refuses_writes_and_keeps_its_values(server: NatsServer) -> None:
    store = await open_nats(servers_at(server.url, max_bytes=2 * 1024 * 1024), timeout=PATIENCE)
    await store.put("/a/first", b"1")
    assert await store.fullness() == ""
    for size in (100_000, 1000):
        with pytest.raises(FullError, match="maximum bytes exceeded"):
            for i in range(200):
                await store.put(f"/a/{size}/{i}", bytes(size))
    assert "is full" in await store.fullness()
    assert await store.get("/a/first") is not None
    await store.close()


async def test_expired_values_are_removed_from_the_stream(server: NatsServer) -> None:
    store = await open_nats(servers_at(server.url), timeout=PATIENCE)
    for i in range(5):
        await store.put(f"/a/{i}", b"1", ttl=1.0)
    await store.put("/a/stays", b"1", ttl=3600.0)
    while (await counts(server))[1] > 1:
        await store.list("/a/")
    assert [entry.key for entry in (await store.list("/a/")).entries] == ["/a/stays"]
    await store.close()
