"""Real agents over the documented set-ups: what they may do, and what they do with forgeries.

What no permission of a store can refuse, because an admin wrote it, the receiver's check of the
signature drops: here with the admin's own hands.
"""

import asyncio
import json
import subprocess
import uuid
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest

from localpuppet.base.errors import IntegrityError
from localpuppet.base.formats.names import NodeName, SignerName
from localpuppet.base.machine.process_table import SystemClock
from localpuppet.fleet.bus import layout
from localpuppet.fleet.inventory import presence
from localpuppet.fleet.requests import request as messages
from localpuppet.fleet.requests import request_client
from localpuppet.fleet.requests.request import NoArguments
from localpuppet.fleet.triggers.cause import Trigger
from localpuppet.fleet.trust.key_files import OwnKey, TrustedKeys
from localpuppet.fleet.trust.signing import MessageKind, MessageSigner, Verifier
from tests.rigs.bus.raw import raw
from tests.rigs.bus.wire import ALICE, LB01, TIMEOUT, WEB01, WEB02, EtcdWire, NatsWire
from tests.rigs.node import COMMAND, PATIENCE, Done, Node
from tests.rigs.servers import OLD_NATS

NAMES = (WEB01, WEB02, LB01, ALICE)
WIRES: dict[str, Callable[[Path], NatsWire | EtcdWire]] = {
    "nats-debian": lambda directory: NatsWire(directory, OLD_NATS),
    "nats": NatsWire,
    "etcd": EtcdWire,
}
POLICY = "policy default deny\nallow\tchoria=alice\tstatus trigger\t*\t*\n"
POLICY += f"allow\tchoria={WEB01} choria={WEB02}\ttrigger\t*\t*\n"


def _trigger(sender: str) -> bytes:
    """Return the payload of a trigger of a node for lb01."""
    return Trigger(
        hostname=NodeName(sender),
        tags=(),
        hosts=(NodeName(LB01),),
        timestamp=int(SystemClock().now().timestamp()),
        uuid=str(uuid.uuid4()),
        ttl=180,
        hops=0,
        path=(NodeName(sender),),
    ).to_payload()


def _broken(token: bytes) -> bytes:
    """Return a message with another signature than its own."""
    body, _, signature = token.rpartition(b".")
    return body + b"." + signature[::-1]


class Site:
    """A fleet on one machine: roots that trust each other's keys, and agents on two of them."""

    def __init__(self, directory: Path, wire: NatsWire | EtcdWire, probe: str) -> None:
        self.wire = wire
        self.nodes = {name: Node(directory / name) for name in NAMES}
        self.signers: dict[str, MessageSigner] = {}
        for name, node in self.nodes.items():
            node.settings(
                node=WEB01 if name == ALICE else name,
                bus=wire.engine,
                buses={wire.engine: wire.settings(name), "timeout": TIMEOUT},
                agent={
                    "run_interval": False,
                    "run_cmd": ["/bin/sh", "-c", f"echo x >> {node.root}/ran"],
                },
                **({"identity": {"name": ALICE}} if name == ALICE else {}),
            )
            node.write("policies/puppet.policy", POLICY)
            (node.state / "cache").mkdir(parents=True, mode=0o700)
            node.write("var/cache/puppet.json", probe.replace("@ROOT@", str(node.root)), 0o600)
            key = OwnKey(node.state / "keys" / "node.pem").make(replace=False)
            self.signers[name] = MessageSigner(SignerName(name), key)
        for name, signer in product(NAMES, self.signers):
            key = OwnKey(self.nodes[signer].state / "keys" / "node.pem").load()
            TrustedKeys(directory / name / "trusted").pin(SignerName(signer), key.public_key())
        self.logs: dict[str, Path] = {}
        self.agents: list[subprocess.Popen[bytes]] = []

    def start(self, name: str) -> None:
        """Start a node's agent."""
        node = self.nodes[name]
        self.logs[name] = node.root / "agent.log"
        with self.logs[name].open("ab") as log:
            self.agents.append(
                subprocess.Popen(
                    [*COMMAND, "agent", "--debug"],
                    env=node.environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )

    def stop(self) -> None:
        for agent in self.agents:
            agent.terminate()
            agent.wait()

    def run(self, name: str, *arguments: str) -> Done:
        return self.nodes[name].run(*arguments)

    def wait_log(self, name: str, text: str, known: int) -> None:
        """Wait until the log of an agent has a text behind its first `known` characters."""
        self.nodes[name].wait_until(lambda: text in self.logs[name].read_text()[known:])

    def ran(self, name: str) -> int:
        file = self.nodes[name].root / "ran"
        return len(file.read_text().split()) if file.exists() else 0


@pytest.fixture(scope="module", params=WIRES)
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, puppet_probe: str
) -> Iterator[Site]:
    """Agents of web01 and lb01 on each engine, as documented; alice has a root of her own."""
    directory = tmp_path_factory.mktemp("site")
    wire: NatsWire | EtcdWire = WIRES[request.param](directory / "wire")
    wire.start()

    async def visit(*nodes: str) -> None:
        """Wait until the server answers and nodes are on the bus."""
        store = await wire.connect(wire.admin)
        async with asyncio.timeout(PATIENCE):
            while not set(nodes) <= set(await presence.nodes(store)):
                await asyncio.sleep(0.02)
        await store.close()

    asyncio.run(visit())
    made = Site(directory, wire, puppet_probe)
    try:
        for name in (WEB01, LB01):
            made.start(name)
        asyncio.run(visit(WEB01, LB01))
        yield made
    finally:
        made.stop()
        wire.server.stop()


def test_a_trigger_that_is_allowed_makes_the_other_run(site: Site) -> None:
    before = site.ran(LB01)
    done = site.run(WEB01, "trigger", LB01, "--wait", "--wait-timeout", "5m")
    assert done.code == 0, done.err
    assert site.ran(LB01) == before + 1


@pytest.mark.parametrize(("sender", "receiver"), [(WEB01, WEB02), (LB01, WEB01)])
def test_a_trigger_that_is_not_allowed_is_refused_by_the_server(
    site: Site, sender: str, receiver: str
) -> None:
    done = site.run(sender, "trigger", receiver)
    assert done.code == 69
    assert "permission" in done.err
    assert len(done.err.splitlines()) == 1


def test_a_refused_trigger_is_an_error_in_puppet(site: Site) -> None:
    """A resource that triggers a node without the right fails with a single line."""
    question = {"verb": "trigger", "name": "t", "hosts": [WEB02], "tags": [], "ttl": None}
    more = {"keyprefix": "/puppet_trigger/events", "keyttl": 180, "engine": None, "run": None}
    node = site.nodes[WEB01]
    done = subprocess.run(
        [*COMMAND, "call"],
        input=json.dumps({**question, **more}) + "\n",
        env=node.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    answer = json.loads(done.stdout)
    assert answer["ok"] is False
    assert "permission" in answer["error"]


def test_only_a_person_with_the_right_can_send_requests(site: Site) -> None:
    done = site.run(ALICE, "status", "--node", LB01, "--json")
    assert done.code == 0, done.err
    assert done.json["replies"][LB01]["ok"] is True
    done = site.run(WEB01, "status", "--node", LB01)
    assert done.code != 0
    assert "permission" in done.err


async def test_messages_of_an_admin_in_anothers_name_are_dropped(site: Site) -> None:
    before = site.ran(LB01)
    node = NodeName(LB01)
    key = layout.triggers_for(node, "/puppet_trigger/events") + WEB01
    genuine = _trigger(WEB01)
    async with raw(site.wire, site.wire.admin) as admin:
        for token, reason in (
            (b"rubbish", "not a signed message"),
            (
                site.signers[WEB02].sign(genuine, MessageKind.TRIGGER),
                f"the signature is {WEB02}'s",
            ),
            (_broken(site.signers[WEB01].sign(genuine, MessageKind.TRIGGER)), "no valid signature"),
        ):
            known = len(site.logs[LB01].read_text())
            assert await admin.write(key, token) is not None
            await asyncio.to_thread(site.wait_log, LB01, reason, known)
        presence = site.signers[WEB02].sign(
            b'{"schema": 1, "node": "web01.example.com"}', MessageKind.PRESENCE
        )
        states = {WEB01: "idle"}
        while states[WEB01] != "not trusted":  # the agent may publish its own in between
            assert await admin.write(layout.PRESENCE + WEB01, presence) is not None
            listing = site.run(ALICE, "nodes", "--json").json["nodes"]
            states = {node["node"]: node["state"] for node in listing}
        assert states[LB01] != "not trusted"
    assert site.ran(LB01) == before


async def test_a_reply_that_an_admin_forges_is_rejected(site: Site) -> None:
    """No agent of web02 is running, so the admin answers in its name."""
    clock = SystemClock()
    signer = site.signers[ALICE]
    request, token = messages.ask(signer, NodeName(WEB02), "status", NoArguments(), clock=clock)
    forged = messages.answer(site.signers[WEB01], request, {"state": "idle"}, clock=clock)
    alice = await site.wire.connect(ALICE)
    async with request_client.Replies(alice, ALICE, NodeName(WEB02)) as replies:
        asking = replies.ask(
            token,
            at=layout.requests_of(ALICE, NodeName(WEB02)) + request.jti,
            node=NodeName(WEB02),
            request=request.jti,
            ttl=600.0,
        )
        waiting = asyncio.ensure_future(anext(asking))
        async with raw(site.wire, site.wire.admin) as admin:
            key = layout.replies_of(NodeName(WEB02), ALICE) + request.jti
            assert await admin.write(key, forged) is not None
        believes = Verifier(TrustedKeys(site.nodes[ALICE].root / "trusted"), None, clock)
        with pytest.raises(IntegrityError, match=WEB01):
            messages.read_answer(believes, await waiting, request, clock=clock)
        await asking.aclose()
    await alice.close()
