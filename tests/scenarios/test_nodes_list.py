"""`localpuppet nodes` has a row for each node: failed, late, unresponsive, and malformed ones.

A trusted node with a compromised agent may publish anything: it hides no other node.
"""

import asyncio
import json
import re
from typing import Any

import pytest

from localpuppet.base.formats.converter import to_record
from localpuppet.base.formats.names import SignerName
from localpuppet.base.machine.process_table import SystemClock
from localpuppet.fleet.inventory import presence
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.fleet.trust.signing import MessageKind, MessageSigner
from localpuppet.node.puppet.fault import FailureCause
from tests.fleet.make import an_end
from tests.rigs.fleet import Fleet
from tests.rigs.member import Member

PLACE = "web/manifests/init.pp:3"
CAUSE = FailureCause(error="Could not find class … for …", place=PLACE)
GOOD: dict[str, Any] = {"schema": 1, "state": "idle", "waiting": 0, "holds": [], "last_run": None}
LAST = to_record(an_end(1_795_000_000.0))
ESCAPE = "\x1b]0;owned\x07\nweb99.example.com  idle"
MALFORMED: list[dict[str, Any]] = [
    {"last_run": "yesterday"},
    {"last_run": {**LAST, "finished_at": "yesterday"}},
    {"last_run": {**LAST, "started_at": -1e300}},
    {"last_run": {**LAST, "failing_since": 1e300}},
    {"last_run": {**LAST, "outcome": ["changed"]}},
    {"last_run": {**LAST, "release": ESCAPE}},
    {"holds": {"reason": "x"}},
    {"holds": ["x"]},
    {"holds": [{"reason": 1}]},
    {"waiting": "many"},
    {"state": None},
    {"state": {"idle": True}},
    {"cause": []},
]
# Well-formed, with texts for the terminal of an operator.
CONTROLS: list[dict[str, Any]] = [
    {"state": ESCAPE},
    {"state": "applying", "cause": ESCAPE},
    {"holds": [{"reason": ESCAPE}]},
]


def announce(fleet: Fleet, member: Member, said: dict[str, Any]) -> None:
    """Publish, as the agent of `member` would, a presence that it never publishes."""
    signer = MessageSigner(SignerName(member.name), member.key.load())
    token = signer.sign(json.dumps({"node": member.name, **said}).encode(), MessageKind.PRESENCE)

    async def write() -> None:
        async with fleet.bus.open() as kv:
            await presence.announce(kv, member.name, token, ttl=3600.0)

    asyncio.run(write())


def test_a_malformed_presence_hides_no_other_node_and_controls_no_terminal(fleet: Fleet) -> None:
    a, b = fleet.add("a", "b")
    announce(fleet, b, GOOD)
    malformed = fleet.add(*(f"m{n}" for n in range(len(MALFORMED))))
    escapes = fleet.add(*(f"e{n}" for n in range(len(CONTROLS))))
    odd = zip([*malformed, *escapes], [*MALFORMED, *CONTROLS], strict=True)
    for member, said in odd:
        announce(fleet, member, {**GOOD, **said})
    shown = a.run("nodes")
    assert (shown.code, shown.err) == (0, "")
    assert not set(shown.out) & {"\x1b", "\x07"}
    lines = shown.out.splitlines()
    assert len(lines) == 1 + len(fleet.members) - 1 + 1, "a heading, the rows, the number of nodes"
    states = {row.split()[0]: " ".join(row.split()[1:3]) for row in lines[1:]}
    assert states[b.name] == "idle"
    assert {states[member.name] for member in malformed} == {"not trusted"}


@pytest.fixture
def looker(fleet: Fleet) -> Member:
    """A member that lists a failed, a late, an unresponsive node, and a node on hold."""
    looker, failed, late, held, lost = fleet.add("looker", "failed", "late", "held", "lost")
    now = SystemClock().now().timestamp()
    last = an_end(now, Kind.COMPILE_FAILED, failing_since=now, failed_runs=3, failure_cause=CAUSE)
    announce(fleet, failed, {**GOOD, "last_run": to_record(last)})
    old = an_end(now - 9e6, Kind.CHANGED)
    announce(fleet, late, {**GOOD, "run_interval": 600, "last_run": to_record(old)})
    hold = {"owner": "alice", "reason": "migration", "until": None}
    announce(fleet, held, {**GOOD, "state": "on hold", "holds": [hold]})
    lost.publish_entry("web", release="web/tags/r41")
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
        looker.run("nodes", *wrong, code=2)
    told = looker.run("nodes", "--json").json
    assert told["counts"]["unresponsive"] == 1
    rows = {one["node"].partition(".")[0]: one for one in told["nodes"]}
    assert (rows["lost"]["state"], rows["lost"]["roles"]) == ("unresponsive", ["web"])
    assert (rows["late"]["late"], rows["failed"]["outcome"]) == (True, "compile failed")
    assert rows["failed"]["last_run"]["failed_runs"] == 3
