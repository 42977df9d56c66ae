"""Nodes kept apart by the documented set-ups: what they need works, and all else is refused.

The refused requests go below localpuppet's own stores, so that it is the server that refuses. For
each, a test shows that the server does it for the member that may.
"""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import datetime, timedelta
from itertools import permutations
from pathlib import Path

import pytest

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.names import NodeName, SignerName
from localpuppet.base.machine.process_table import SystemClock
from localpuppet.fleet.bus import key_value, layout
from localpuppet.fleet.bus.key_value import KeyValue, RefusedError
from localpuppet.fleet.history.history_follower import read_runs
from localpuppet.fleet.history.history_records import AUDIT, DAY, RUNS, history_key
from localpuppet.fleet.inventory import presence
from localpuppet.fleet.leases.lease import Leases
from localpuppet.fleet.requests import request_client as exchange
from localpuppet.fleet.triggers import sending
from localpuppet.fleet.trust.key_files import OwnKey, TrustedKeys
from tests.doubles.identities import person, verifier
from tests.doubles.memory_store import FirstStore
from tests.rigs.bus.raw import raw
from tests.rigs.bus.wire import (
    ALICE,
    LB01,
    WEB01,
    WEB02,
    EtcdWire,
    NatsWire,
    Site,
    Wire,
    check_refusal,
)
from tests.rigs.following import Follower
from tests.rigs.node import Node
from tests.rigs.servers import OLD_NATS
from tests.rigs.waiting import PATIENCE

TRIGGERS = "/puppet_trigger/events/hosts"
TODAY = int(SystemClock().now().timestamp() // DAY)
Make = Callable[[Path], NatsWire | EtcdWire]
WIRES: dict[str, Make] = {
    "nats-debian": lambda directory: NatsWire(directory, OLD_NATS),
    "nats": NatsWire,
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
    """Let the admin use it once: that makes the streams of NATS."""
    async with store(wire, wire.admin) as admin:
        await admin.list(layout.INVENTORY)


@asynccontextmanager
async def store(wire: Wire, name: str) -> AsyncGenerator[KeyValue, None]:
    """Return the store as a member uses it."""
    kv = await wire.connect(name)
    try:
        yield kv
    finally:
        await kv.close()


async def send(kv: KeyValue, sender: str, *hosts: str) -> sending.SendResult:
    return await sending.send(
        sending.Outgoing(
            hosts=tuple(NodeName(host) for host in hosts),
            tags=(),
            ttl=180,
            keyprefix="/puppet_trigger/events",
            keyttl=180,
        ),
        kv=kv,
        signer=person(sender).signer,
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


async def test_history_is_published_and_read(wire: Wire) -> None:
    async with store(wire, WEB01) as web01, store(wire, ALICE) as alice:
        keys = {history_key(NodeName(WEB01), kind.kind, TODAY) for kind in (RUNS, AUDIT)}
        for key in keys:
            await web01.put(key, b"a day")
        assert {entry.key for entry in (await alice.list(layout.HISTORY)).entries} >= keys


# Member, verb → keys. Each is possible, and is for the admin; see `test_who_may_may`.
REFUSED: dict[tuple[str, str], Sequence[str]] = {
    (WEB01, "write"): [
        # other nodes' presence and history
        f"/localpuppet/presence/{WEB02}",
        *(history_key(NodeName(WEB02), kind.kind, TODAY) for kind in (RUNS, AUDIT)),
        # a receiver that the roster does not name, or another sender's name
        f"{TRIGGERS}/{WEB02}/{WEB01}",
        f"{TRIGGERS}/{WEB01}/{WEB01}",
        f"{TRIGGERS}/{LB01}/{WEB02}",
        f"{TRIGGERS}/{LB01}/{ALICE}",
        # commands to another's rollout, or in another's name; its checkpoint
        f"/localpuppet/commands/{ALICE}/{WEB01}/x/1",
        f"/localpuppet/commands/{ALICE}/{ALICE}/x/1",
        f"/localpuppet/rollouts/{ALICE}/x",
        # requests to others, in another's name, or without being allowed to ask at all
        f"/localpuppet/requests/{WEB02}/{WEB01}/1",
        f"/localpuppet/requests/{WEB02}/{ALICE}/1",
        # replies in another node's name
        f"/localpuppet/replies/{ALICE}/{WEB02}/1",
        f"/localpuppet/replies/{WEB02}/{WEB01}/1",
        # leases that the roster does not give, and everything else
        "/localpuppet/leases/other",
        "/localpuppet/other",
    ],
    (LB01, "write"): [f"{TRIGGERS}/{WEB01}/{LB01}", "/localpuppet/leases/db-migrate"],
    (ALICE, "write"): [
        f"/localpuppet/presence/{WEB02}",
        f"/localpuppet/requests/{WEB02}/{WEB01}/1",
    ],
    (WEB01, "read"): [
        f"{TRIGGERS}/{LB01}/{WEB02}",
        f"{TRIGGERS}/{LB01}/{WEB01}",
        f"/localpuppet/requests/{WEB02}/{ALICE}/1",
        f"/localpuppet/replies/{ALICE}/{WEB02}/1",
    ],
    (WEB01, "list"): [
        f"{TRIGGERS}/{LB01}/",
        f"{TRIGGERS}/",
        f"/localpuppet/requests/{WEB02}/",
        f"/localpuppet/replies/{ALICE}/",
        layout.HISTORY,
        "/localpuppet/",
    ],
    (WEB01, "watch"): [
        f"{TRIGGERS}/{LB01}/",
        f"{TRIGGERS}/",
        f"/localpuppet/commands/{ALICE}/",
        f"/localpuppet/requests/{WEB02}/",
        f"/localpuppet/replies/{ALICE}/{WEB01}/",
        "/localpuppet/",
    ],
    (ALICE, "list"): [f"{TRIGGERS}/{LB01}/", f"/localpuppet/requests/{WEB02}/"],
    (LB01, "list"): [layout.HISTORY],  # it may read the inventory
}


@pytest.mark.parametrize(("who", "verb"), REFUSED)
async def test_the_server_refuses(wire: NatsWire | EtcdWire, who: str, verb: str) -> None:
    async with store(wire, wire.admin) as admin, raw(wire, who) as client:
        for key in REFUSED[who, verb]:
            at = key if not key.endswith("/") else f"{key}x/1"
            before = await admin.put(at, b"there", ttl=3600.0)
            call = client.write(key, b"forged") if verb == "write" else getattr(client, verb)(key)
            assert await call is None, key
            entry = await admin.get(at)
            assert entry is not None
            assert (entry.value, entry.revision) == (b"there", before)


async def test_who_may_may(wire: NatsWire | EtcdWire) -> None:
    """The counterpart of the refusals: the same calls succeed for the admin, and for the owner."""
    own = f"{TRIGGERS}/{WEB01}/"
    async with store(wire, wire.admin) as admin:
        await admin.put(f"{own}{ALICE}", b"for web01", ttl=3600.0)
    for who, place, name in ((wire.admin, "/localpuppet/presence/", WEB02), (WEB01, own, ALICE)):
        async with raw(wire, who) as client:
            if who == wire.admin:
                assert await client.write(f"{place}{name}", b"1") is not None
            assert await client.read(f"{place}{name}") is not None
            assert await client.list(place) is not None
            assert await client.watch(place) is not None


async def test_localpuppets_store_reports_a_refusal_at_once(wire: Wire, tmp_path: Path) -> None:
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
        with pytest.raises(RefusedError, match="permission"):
            await web01.put(history_key(NodeName(WEB02), RUNS.kind, TODAY), b"forged")
        with pytest.raises(RefusedError, match="no right to read history"):
            known = verifier(tmp_path, person(WEB02))
            await read_runs(web01, NodeName(WEB02), known, now=TODAY * DAY)
        # The connection has not suffered.
        await presence.announce(web01, NodeName(WEB01), b"still here")


async def test_a_client_that_no_roster_line_names_is_refused(wire: Wire, tmp_path: Path) -> None:
    """Also with a certificate of the site's CA, and with a name of the roster by another CA."""
    stranger = Site(tmp_path).issue(WEB01)

    async def visit(name: str | None, seconds: float) -> KeyValue:
        identity = stranger if name == WEB01 else None
        kv = await wire.connect(name, identity=identity, timeout=seconds)
        await kv.list(layout.PRESENCE)
        return kv

    for name, reason in (
        (None, r"(?i)certificate|tls|ssl|closed"),
        (WEB01, r"(?i)certificate|tls|ssl|closed|unknown ca"),
        ("db01.example.com", r"(?i)permission|credentials|authentication|user name not found"),
    ):
        await check_refusal(lambda seconds, name=name: visit(name, seconds), reason, seconds=1.0)  # type: ignore[misc]


async def test_a_server_of_another_ca_or_name_is_refused(wire: Wire, tmp_path: Path) -> None:
    ca, url = Site(tmp_path).path, wire.url.replace("localhost", "127.0.0.1")
    await check_refusal(
        lambda seconds: wire.connect(WEB01, ca=ca, timeout=seconds),
        r"(?i)certificate.verify|certificate is refused",
        seconds=1.0,
    )
    await check_refusal(
        lambda seconds: wire.connect(WEB01, url=url, timeout=seconds),
        r"(?i)certificate.verify|certificate is refused|IP address mismatch",
        seconds=1.0,
    )


async def test_a_client_in_clear_text(wire: Wire) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", wire.server.port)
    writer.write(b'CONNECT {"verbose":true}\r\nPING\r\n')
    if wire.engine == "etcd":
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
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


class Agents:
    """Roots that trust each other's keys, and agents of web01 and lb01."""

    def __init__(self, directory: Path, wire: NatsWire | EtcdWire, probe: str) -> None:
        self.nodes = {name: Node(directory / name) for name in (WEB01, WEB02, LB01, ALICE)}
        own = {name: OwnKey(node.state / "keys" / "node.pem") for name, node in self.nodes.items()}
        policy = "policy default deny\nallow\tchoria=alice\tstatus\t*\t*\n"
        policy += f"allow\tchoria={WEB01}\ttrigger\t*\t*\n"
        for name, node in self.nodes.items():
            run = ["/bin/sh", "-c", f"echo x >> {node.root}/ran"]
            node.settings(
                node=WEB01 if name == ALICE else name,
                bus=wire.engine,
                buses={wire.engine: wire.settings(name), "timeout": PATIENCE},
                agent={"run_interval": False, "run_cmd": run},
                **({"identity": {"name": ALICE}} if name == ALICE else {}),
            )
            node.write("policies/puppet.policy", policy)
            (node.state / "cache").mkdir(parents=True, mode=0o700)
            node.write("var/cache/puppet.json", probe.replace("@ROOT@", str(node.root)), 0o600)
            own[name].make(replace=False)
        for name, signer in permutations(self.nodes, 2):
            key = own[signer].load().public_key()
            TrustedKeys(directory / name / "trusted").pin(SignerName(signer), key)
        self.running = [self.nodes[name].start("agent") for name in (WEB01, LB01)]

    def ran(self) -> int:
        file = self.nodes[LB01].root / "ran"
        return len(file.read_text().split()) if file.exists() else 0

    def stop(self) -> None:
        for agent in self.running:
            agent.terminate()
            agent.communicate()


@pytest.fixture
def agents(wire: NatsWire | EtcdWire, tmp_path: Path, puppet_probe: str) -> Iterator[Agents]:
    made = Agents(tmp_path, wire, puppet_probe)

    async def present() -> None:  # signed, unlike what other tests publish
        async with asyncio.timeout(PATIENCE), store(wire, wire.admin) as admin:
            while not {WEB01, LB01} <= {
                name for name, said in (await presence.nodes(admin)).items() if len(said) > 100
            }:
                await asyncio.sleep(0.02)

    asyncio.run(present())
    yield made
    made.stop()


def test_agents_and_commands_may_what_the_roster_says(agents: Agents) -> None:
    """Also a resource of Puppet that triggers a node: it fails with a single line."""
    nodes = agents.nodes
    done = nodes[WEB01].run("trigger", LB01, "--wait", "--wait-timeout", "5m")
    assert (done.code, agents.ran()) == (0, 1), done.err
    for sender, receiver in ((WEB01, WEB02), (LB01, WEB01)):
        refused = nodes[sender].run("trigger", receiver)
        assert (refused.code, "permission" in refused.err) == (69, True)
        assert len(refused.err.splitlines()) == 1
    question = {"verb": "trigger", "name": "t", "hosts": [WEB02], "tags": [], "ttl": None}
    more = {"keyprefix": "/puppet_trigger/events", "keyttl": 180, "engine": None, "run": None}
    answer = nodes[WEB01].feed(json.dumps({**question, **more}) + "\n", "call").json
    assert (answer["ok"], "permission" in answer["error"]) == (False, True)
    done = nodes[ALICE].run("status", "--node", LB01, "--json", code=0)
    assert done.json["replies"][LB01]["ok"] is True
    refused = nodes[WEB01].run("status", "--node", LB01)
    assert (refused.code != 0, "permission" in refused.err) == (True, True)
