"""How NATS keeps nodes apart: the API, replies as a weapon, names, TLS."""

import asyncio
import json
import signal
import socket
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.bus import jetstream, layout
from localpuppet.fleet.bus.jetstream_messages import packed
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.bus.nats_bus import open_nats
from localpuppet.fleet.inventory import presence
from tests.rigs.bus.raw import STREAM, RawNats, raw_nats
from tests.rigs.bus.wire import LB01, REFUSAL, WEB01, WEB02, NatsWire, check_refusal, permissions
from tests.rigs.following import Follower
from tests.rigs.reaching import servers_at
from tests.rigs.servers import NEW_NATS, OLD_NATS
from tests.rigs.waiting import PATIENCE, answered

OTHERS = f"{layout.PRESENCE}{WEB02}"
SUBJECT = "lp.localpuppet.presence.web02~example~com"
LIVE = "lp-live.localpuppet.presence.web02~example~com"
MINE = "lp.localpuppet.presence.web01~example~com"


METHODS = """
STREAM.DELETE.localpuppet STREAM.PURGE.localpuppet STREAM.UPDATE.localpuppet STREAM.CREATE.mine
STREAM.MSG.GET.localpuppet STREAM.MSG.DELETE.localpuppet STREAM.SNAPSHOT.localpuppet STREAM.NAMES
STREAM.LIST DIRECT.GET.localpuppet CONSUMER.CREATE.localpuppet CONSUMER.CREATE.localpuppet.all
CONSUMER.DURABLE.CREATE.localpuppet.all CONSUMER.NAMES.localpuppet CONSUMER.LIST.localpuppet INFO
"""


@pytest.fixture(scope="module", params=[OLD_NATS, NEW_NATS], ids=["nats-debian", "nats"])
def wire(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NatsWire]:
    """A server of each version as documented."""
    made = NatsWire(tmp_path_factory.mktemp("wire") / "nats", request.param)
    made.start()

    async def visit() -> None:
        await (await made.connect(made.admin)).close()

    asyncio.run(visit())
    yield made
    made.server.stop()


async def test_a_node_may_not(wire: NatsWire) -> None:
    async with raw_nats(wire, WEB01) as client:
        for method in METHODS.split():
            for api in (client.api, "$JS.API"):
                assert await client.ask(f"{api}.{method}") is None, method
    async with raw_nats(wire, wire.admin) as admin:
        assert (await admin.call(f"STREAM.INFO.{STREAM}") or {})["config"]["name"] == STREAM


async def test_a_consumer_cannot_have_another_filter_than_its_subject(wire: NatsWire) -> None:
    below = "lp.localpuppet.presence.>"
    async with raw_nats(wire, WEB01) as client:
        for config in (
            {"filter_subject": "lp.>"},
            {"filter_subject": ""},
            {},
            {"filter_subjects": [below, "lp.puppet_trigger.>"]},
        ):
            body = {"name": "sly", "ack_policy": "none", **config}
            answer = await client.call(
                f"CONSUMER.CREATE.{STREAM}.sly.{below}", {"stream_name": STREAM, "config": body}
            )
            assert "error" in (answer or {}), config


@pytest.mark.parametrize(("asked", "granted"), [(0, 300), (300, 300), (3600, None)])
async def test_abandoned_consumers_expire(wire: NatsWire, asked: int, granted: int | None) -> None:
    """A node can create as many as the server allows in less than a second."""
    subject = "lp.localpuppet.presence.>"
    config = {
        **{"name": "left", "durable_name": "left", "filter_subject": subject},
        **{"ack_policy": "none", "inactive_threshold": asked * 10**9},
    }
    async with raw_nats(wire, wire.admin) as admin:
        stream = await admin.call(f"STREAM.INFO.{STREAM}") or {}
    if "consumer_limits" not in stream["config"]:  # NATS before 2.10 has no such limit
        assert wire.server.program == OLD_NATS
        granted = asked
    async with raw_nats(wire, WEB01) as client:
        answer = await client.call(
            f"CONSUMER.CREATE.{STREAM}.left.{subject}", {"stream_name": STREAM, "config": config}
        )
        assert answer is not None
        if granted is None:
            assert "inactive threshold" in answer["error"]["description"]
        else:
            assert answer["config"].get("inactive_threshold", 0) == granted * 10**9
            await client.call(f"CONSUMER.DELETE.{STREAM}.left")


async def test_a_write_cannot_remove_others(wire: NatsWire) -> None:
    async with raw_nats(wire, WEB01) as client:
        for rollup in ("all", "sub"):
            answer = await client.ask(MINE, b"1", headers={"Nats-Rollup": rollup})
            assert answer is not None
            assert "rollup not permitted" in answer.data.decode()


async def stored(client: RawNats) -> bytes:
    answer = await client.read(f"{layout.PRESENCE}{WEB01}")
    return answer.data if isinstance(answer, Msg) else b""


@asynccontextmanager
async def provoked(client: RawNats, answer_to: str) -> AsyncGenerator[None]:
    """Send every request that a node may send, with a reply subject that is not its own.

    A busy server stores and delivers in its own time: it is asked for messages when it has stored
    the forged one, and its consumers exist until the end of the block.
    """
    ask, api = client.client, client.api
    await ask.publish(f"{api}.STREAM.INFO.{STREAM}", b"", reply=answer_to)
    await ask.publish(f"{api}.DIRECT.GET.{STREAM}.{MINE}", b"", reply=answer_to)
    future = {"Nats-Subject": SUBJECT, "Nats-Sequence": "999999999"}
    await ask.publish(MINE, packed(b"forged", ttl=None), reply=answer_to, headers=future)
    while b"forged" not in await stored(client):
        await asyncio.sleep(0.01)
    below = "lp.localpuppet.presence.>"
    config = {"name": "pull", "ack_policy": "none", "filter_subject": below, "mem_storage": True}
    create = f"CONSUMER.CREATE.{STREAM}.pull.{below}"
    assert await client.call(create, {"stream_name": STREAM, "config": config}) is not None
    body = json.dumps({"batch": 10, "no_wait": True}).encode()
    await ask.publish(f"{api}.CONSUMER.MSG.NEXT.{STREAM}.pull", body, reply=answer_to)
    push = {**config, "name": "push", "deliver_subject": answer_to}
    create = create.replace("pull", "push")
    await client.call(create, {"stream_name": STREAM, "config": push})
    assert await client.call(f"STREAM.INFO.{STREAM}") is not None
    yield
    for name in ("pull", "push"):
        await client.call(f"CONSUMER.DELETE.{STREAM}.{name}")


async def test_no_answer_and_no_trace_of_the_server_becomes_a_write(wire: NatsWire) -> None:
    """The reason for two accounts: in one, each of these would become web02's presence.

    From 2.11 on, a header names the subject to which the server reports on a message.
    """
    admin = await wire.connect(wire.admin)
    before = await admin.put(OTHERS, b"there", ttl=3600.0)

    async def there() -> tuple[bytes, int]:
        entry = await admin.get(OTHERS)
        assert entry is not None
        return entry.value, entry.revision

    async with raw_nats(wire, WEB01) as client:
        assert await client.write(f"{layout.PRESENCE}{WEB01}", b"mine") is not None
        async with provoked(client, SUBJECT):
            assert await there() == (b"there", before)
        traced = {"Nats-Trace-Dest": SUBJECT}
        await client.client.publish(MINE, packed(b"1", ttl=None), headers=traced)
        await client.client.flush(timeout=int(PATIENCE))
        assert await there() == (b"there", before)
    await admin.close()


async def test_in_one_account_a_reply_could_overwrite_the_key_of_a_node(wire: NatsWire) -> None:
    """In the stream's own account the same request does what the documentation warns of."""
    admin = await wire.connect(wire.admin)
    await admin.put(OTHERS, b"there", ttl=3600.0)
    async with raw_nats(wire, wire.admin) as client:
        await client.client.publish(f"$JS.API.STREAM.INFO.{STREAM}", b"", reply=SUBJECT)
        assert await client.call(f"STREAM.INFO.{STREAM}") is not None
        # The server stores its answer in its own time: a call behind the publish may overtake it.
        while await admin.get(OTHERS) is not None:
            await asyncio.sleep(0.01)
        answer = await client.read(OTHERS)
        assert isinstance(answer, Msg)
        assert b"stream_info_response" in answer.data
    await admin.close()


async def test_a_replaced_stream_is_noticed(
    wire: NatsWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jetstream, "LOOK", 86400.0)  # the server reports it
    node = await wire.connect(LB01)
    follower = Follower(node, layout.PRESENCE)
    await follower.listed()
    async with raw_nats(wire, wire.admin) as admin:
        await admin.ask("$JS.API.STREAM.DELETE.localpuppet")
    assert "has no stream localpuppet" in str(await follower.failed())
    again = await wire.connect(wire.admin)  # which may create it
    assert not (await node.list(layout.PRESENCE)).entries
    await again.close()
    await node.close()


async def test_a_forged_repetition_makes_no_watch_deaf(wire: NatsWire) -> None:
    """A remaining attack: a node can send others a reply as if it had been stored.

    They check its signature. It must not stop them from receiving the rest, even if it claims a
    revision in the far future.
    """
    lb01: KeyValue = await wire.connect(LB01)
    admin = await wire.connect(wire.admin)
    follower = Follower(lb01, layout.PRESENCE)
    await follower.listed()
    async with raw_nats(wire, WEB01) as client, provoked(client, LIVE):
        await follower.until(lambda: follower.state.get(OTHERS) == b"forged")
    for value in (b"1", b"2", b"3"):
        await admin.put(OTHERS, value, ttl=3600.0)
        await follower.until(lambda value=value: follower.state.get(OTHERS) == value)  # type: ignore[misc]
    assert follower.revision < 999999999
    await follower.stop()
    await lb01.close()
    await admin.close()


async def test_a_stream_of_before_gets_the_limit_and_an_operators_own_stays(wire: NatsWire) -> None:
    async with raw_nats(wire, wire.admin) as admin:
        for before, after in (({"inactive_threshold": 10**9}, 1), ({}, 300)):
            found = await admin.call(f"STREAM.INFO.{STREAM}")
            assert found is not None
            config = {**found["config"], "consumer_limits": before}
            assert "error" not in (await admin.call(f"STREAM.UPDATE.{STREAM}", config) or {})
            await (await wire.connect(wire.admin)).close()
            found = await admin.call(f"STREAM.INFO.{STREAM}")
            assert found is not None
            limits = found["config"].get("consumer_limits", {})
            if wire.server.program != OLD_NATS:
                assert limits["inactive_threshold"] == after * 10**9


async def test_only_the_certificate_decides_the_user(wire: NatsWire) -> None:
    async with raw_nats(wire, WEB02, user=WEB01, password="") as client:
        assert await client.write(f"{layout.PRESENCE}{WEB01}", b"forged") is None
    own = wire.authority.issue(WEB01, WEB01)  # a certificate that has its name in DNS, too
    kv = await wire.connect(WEB01, identity=own)
    await presence.announce(kv, NodeName(WEB01), b"1")
    await kv.close()


async def test_replies_to_others_cannot_be_received(wire: NatsWire) -> None:
    async with raw_nats(wire, WEB01) as client:
        for subject in ("_INBOX.>", "_INBOX_web02~example~com.>", ">", "$JS.>", "_R_.>", "$SYS.>"):
            assert await client.subscribe(subject) is None


async def test_a_node_can_list_the_names_of_all_keys(wire: NatsWire) -> None:
    """Names of keys: which members have written to which, and how much. This is documented."""
    async with raw_nats(wire, WEB01) as client:
        answer = await client.call(f"STREAM.INFO.{STREAM}", {"subjects_filter": "lp.>"})
        assert answer is not None
        assert MINE in answer["state"]["subjects"]


async def test_without_the_other_account_there_is_no_stream(wire: NatsWire) -> None:
    """If the settings of a node lack `api`, it gets an error, and the server creates nothing."""
    own = wire.identity(WEB01)
    with pytest.raises(UnavailableError, match="permission"):
        await open_nats(
            servers_at(wire.url, ca=wire.authority.path, certificate=own.certificate, key=own.key),
            timeout=PATIENCE,
            inbox="_INBOX_web01~example~com",
        )


async def test_a_changed_roster_counts_after_a_reload(tmp_path: Path, wire: NatsWire) -> None:
    own = NatsWire(tmp_path / "own", wire.server.program)
    own.start()
    try:
        with pytest.raises(UnavailableError, match="has no stream"):  # no admin was here yet
            await own.connect(WEB01)
        await (await own.connect(own.admin)).close()
        # While a server reads its configuration again, a call may get no answer.
        web01 = await answered(lambda: own.connect(WEB01, timeout=REFUSAL))
        await answered(lambda: web01.put("/localpuppet/leases/db-migrate", b"1", ttl=3600.0))
        roster = tmp_path / "roster.yaml"
        roster.write_text(f"admins: [bus-admin]\nnodes: {{{WEB01}: {{}}}}\n")
        accounts = own.server.directory / "accounts.conf"
        accounts.write_text(permissions("nats", roster))
        assert own.server.process is not None
        own.server.process.send_signal(signal.SIGHUP)
        said = ""
        while "permissions violation" not in said:  # until it was read; connections may end then
            try:
                await web01.put("/localpuppet/leases/db-migrate", b"1", ttl=3600.0)
            except UnavailableError as error:
                said = str(error)
        await answered(lambda: presence.announce(web01, NodeName(WEB01), b"1"))
        await web01.close()
        with pytest.raises(UnavailableError, match="credentials"):
            await own.connect(LB01)
    finally:
        own.server.stop()


async def test_a_server_that_pretends_to_have_no_tls_receives_nothing(tmp_path: Path) -> None:
    """Its first line comes in clear text: an attacker on the path may have written it."""
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        info = {"server_id": "x", "version": "2.15.0", "max_payload": 1048576, "headers": True}
        writer.write(b"INFO " + json.dumps(info).encode() + b"\r\n")
        heard.append(await reader.read())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, family=socket.AF_INET)
    port = server.sockets[0].getsockname()[1]
    servers = servers_at(f"tls://127.0.0.1:{port}", user="web01")
    await check_refusal(
        lambda seconds: open_nats(servers, timeout=seconds, password="secret"),
        "does not support TLS",
        seconds=1.0,
    )
    server.close()
    await server.wait_closed()
    assert heard
    assert not any(heard)
