"""A trusted node with a compromised agent: the effect of its messages on other nodes."""

import asyncio
import json
from typing import Any

import pytest

from localpuppet.base.formats.converter import to_record
from localpuppet.base.formats.names import SignerName
from localpuppet.fleet.inventory import presence
from localpuppet.fleet.trust.signing import MessageKind, MessageSigner
from tests.fleet.make import an_end
from tests.rigs.fleet import Fleet
from tests.rigs.member import Member

GOOD: dict[str, Any] = {"schema": 1, "state": "idle", "waiting": 0, "holds": [], "last_run": None}
LAST = to_record(an_end(1_795_000_000.0))
ESCAPE = "\x1b]0;owned\x07\nweb99.example.com  idle"


def announce(fleet: Fleet, member: Member, said: dict[str, Any]) -> None:
    """Publish, as the agent of `member` would, a presence that it never publishes."""
    signer = MessageSigner(SignerName(member.name), member.key.load())
    token = signer.sign(json.dumps({"node": member.name, **said}).encode(), MessageKind.PRESENCE)

    async def write() -> None:
        async with fleet.bus.open() as kv:
            await presence.announce(kv, member.name, token, ttl=3600.0)

    asyncio.run(write())


@pytest.mark.parametrize(
    "odd",
    [
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
    ],
    ids=str,
)
def test_a_malformed_presence_hides_no_other_node(fleet: Fleet, odd: dict[str, Any]) -> None:
    a, b, eve = fleet.add("a", "b", "eve")
    announce(fleet, b, GOOD)
    announce(fleet, eve, {**GOOD, **odd})
    shown = a.run("nodes")
    assert (shown.code, shown.err) == (0, "")
    states = {row.split()[0]: " ".join(row.split()[1:3]) for row in shown.out.splitlines()[1:]}
    assert states[b.name] == "idle"
    assert states[eve.name] == "not trusted"


@pytest.mark.parametrize(
    "odd",
    [
        {"state": ESCAPE},
        {"state": "applying", "cause": ESCAPE},
        {"holds": [{"reason": ESCAPE}]},
    ],
    ids=["state", "cause", "hold"],
)
def test_a_node_cannot_control_the_terminal_of_an_operator(
    fleet: Fleet, odd: dict[str, Any]
) -> None:
    a, eve = fleet.add("a", "eve")
    announce(fleet, eve, {**GOOD, **odd})
    shown = a.run("nodes")
    assert shown.code == 0
    assert not set(shown.out) & {"\x1b", "\x07"}
    assert len(shown.out.splitlines()) == 3, "a heading, a row and the number of nodes"
