"""`localpuppet nodes` shows the dashboard's rows: failed, late and unresponsive nodes, too."""

import asyncio
import re

import pytest

from localpuppet.base.formats.converter import to_record
from localpuppet.base.formats.names import SignerName
from localpuppet.base.machine.ports import Clock
from localpuppet.base.machine.process_table import SystemClock
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.fleet.trust.signing import MessageKind, MessageSigner
from localpuppet.node.puppet.fault import FailureCause
from tests.fleet.inventory.entries import entry, key_of
from tests.fleet.make import an_end
from tests.rigs.fleet import Fleet
from tests.rigs.member import Member
from tests.scenarios.test_hostile_nodes import GOOD, announce

PLACE = "web/manifests/init.pp:3"
CAUSE = FailureCause(error="Could not find class … for …", place=PLACE)


def publish(fleet: Fleet, member: Member, clock: Clock) -> None:
    """Publish the entry of a node whose agent is not running."""
    said = entry(member.name, at=clock.now().timestamp(), roles=("web",), release="web/tags/r41")
    signer = MessageSigner(SignerName(member.name), member.key.load())

    async def write() -> None:
        async with fleet.bus.open() as kv:
            await kv.put(key_of(member.name), signer.sign(said.to_payload(), MessageKind.INVENTORY))

    asyncio.run(write())


@pytest.fixture
def looker(fleet: Fleet) -> Member:
    """A member that lists a failed, a late, an unresponsive node, and a node on hold."""
    looker, failed, late, held, lost = fleet.add("looker", "failed", "late", "held", "lost")
    clock = SystemClock()
    now = clock.now().timestamp()
    last = an_end(now, Kind.COMPILE_FAILED, failing_since=now, failed_runs=3, failure_cause=CAUSE)
    announce(fleet, failed, {**GOOD, "last_run": to_record(last)})
    old = an_end(now - 9e6, Kind.CHANGED)
    announce(fleet, late, {**GOOD, "run_interval": 600, "last_run": to_record(old)})
    hold = {"owner": "alice", "reason": "migration", "until": None}
    announce(fleet, held, {**GOOD, "state": "on hold", "holds": [hold]})
    publish(fleet, lost, clock)
    return looker


def names(looker: Member, *options: str) -> list[str]:
    done = looker.run("nodes", *options)
    assert (done.code, done.err) == (0, "")
    return re.findall(r"^(\w+)\.example\.com", done.out, re.MULTILINE)


def test_each_node_has_a_row(looker: Member) -> None:
    lines = looker.run("nodes", "--sort", "severity").out.splitlines()
    assert [line.split(".")[0] for line in lines[1:-1]] == ["failed", "lost", "late", "held"]
    assert lines[-1] == "4 nodes: 1 failed, 1 unresponsive, 1 late, 1 on hold"
    assert "Could not find class … for … (web/manifests/init.pp:3)" in lines[1]
    assert "compile failed" in lines[1]
    assert "3 runs" in lines[1]
    assert re.search(r"unresponsive +unknown", lines[2]), "the bus has no history of it"
    assert "web/tags/r41" not in lines[2], "its last good run need not be its last run"
    assert "idle late" in lines[3]
    assert "migration (alice)" in lines[4]


def test_options_choose_nodes(looker: Member) -> None:
    assert names(looker, "--failed") == ["failed"]
    assert names(looker, "--late", "--unresponsive") == ["late", "lost"]
    assert names(looker, "--role", "web") == names(looker, "--query", "role=web") == ["lost"]
    assert names(looker, "--sort", "-node") == ["lost", "late", "held", "failed"]
    assert looker.run("nodes", "--role", "db").out == "no node matches\n"
    for wrong in (["--watch", "--failed"], ["--sort", "age"]):
        assert looker.run("nodes", *wrong).code == 2
    told = looker.run("nodes", "--json").json
    assert told["counts"]["unresponsive"] == 1
    rows = {one["node"].partition(".")[0]: one for one in told["nodes"]}
    assert (rows["lost"]["state"], rows["lost"]["roles"]) == ("unresponsive", ["web"])
    assert (rows["late"]["late"], rows["failed"]["outcome"]) == (True, "compile failed")
    assert rows["failed"]["last_run"]["failed_runs"] == 3
