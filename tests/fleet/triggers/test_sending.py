"""What each receiver gets, and what a call with many receivers leaves on the bus."""

import json
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.machine.processes import SystemProcesses
from localpuppet.fleet.triggers import sending
from localpuppet.fleet.triggers.cause import Trigger
from localpuppet.fleet.triggers.trigger_admission import next_path
from localpuppet.fleet.trust.signing import MessageKind, claimed_payload
from localpuppet.node.runs.run_records import Records
from tests.doubles.identities import person, verifier
from tests.doubles.memory_store import MemoryKeyValue, MemoryStore
from tests.doubles.ports import FakeClock
from tests.fleet.make import there

A, B, C = (NodeName.parse(f"{letter}.example.com") for letter in "abc")
UUID = "3f2504e0-4f89-41d3-9a0c-0305e82c3301"
ORIGIN: tuple[NodeName, ...] = ()


class Site:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(now=self.clock.monotonic)
        self.sender = person(A)

    async def send(
        self, *hosts: NodeName, paths: list[tuple[NodeName, ...]], tags: tuple[str, ...] = ("web",)
    ) -> sending.SendResult:
        call = sending.Outgoing(hosts=hosts, tags=tags, ttl=60, keyprefix="/t/events", keyttl=90)
        kv, signer = MemoryKeyValue(self.store), self.sender.signer
        return await sending.send(
            call, kv=kv, signer=signer, paths=paths, clock=self.clock, uuid=UUID
        )

    def message(self, host: NodeName) -> Trigger:
        entry = there(self.store.get(f"/t/events/hosts/{host}/{A}"))
        return Trigger.parse(claimed_payload(entry.value))


async def test_a_trigger_is_signed_and_lies_below_its_receiver(tmp_path: Path) -> None:
    site = Site()
    sent = await site.send(B, C, B, paths=[ORIGIN])
    assert (sent.uuid, sent.sent, sent.dropped) == (UUID, (B, C), {})
    message = site.message(B)
    assert (message.hostname, message.hosts, message.path, message.ttl) == (A, (B, C), (A,), 60)
    entry = there(site.store.get(f"/t/events/hosts/{B}/{A}"))
    signed = verifier(tmp_path, site.sender).verify(entry.value, MessageKind.TRIGGER)
    assert signed.signer == site.sender.name
    site.clock.advance(91)
    assert site.store.get(f"/t/events/hosts/{B}/{A}") is None


async def test_a_trigger_that_no_receiver_would_accept_is_not_sent() -> None:
    site = Site()
    with pytest.raises(InvalidInputError, match=r"trigger\.tags: has 101 elements"):
        await site.send(B, paths=[ORIGIN], tags=("web",) * 101)
    site.sender = person("alice_b")
    with pytest.raises(InvalidInputError, match=r"trigger\.hostname: node name 'alice_b'"):
        await site.send(B, paths=[ORIGIN])
    assert site.store.kept == {}


async def test_each_receiver_gets_a_path_without_it_and_loops_are_dropped() -> None:
    site = Site()
    d = NodeName("d.example.com")
    sent = await site.send(A, B, C, d, paths=[(B,), (C, d)])
    assert sent.sent == (B, C, d)
    assert list(sent.dropped) == [A]
    assert sent.dropped[A].startswith("the loop ends here")
    assert site.message(B).path == (C, d, A)
    assert site.message(C).path == (B, A)
    assert site.message(d).path == (B, A)
    assert site.message(C).hosts == (C, d), "receivers with the same path share a message"


async def test_more_receivers_than_a_message_names() -> None:
    site = Site()
    hosts = [NodeName(f"n{index}.example.com") for index in range(sending.TOGETHER + 1)]
    assert len((await site.send(*hosts, paths=[ORIGIN])).sent) == sending.TOGETHER + 1
    assert site.message(hosts[0]).hosts == tuple(hosts[: sending.TOGETHER])
    assert site.message(hosts[-1]).hosts == (hosts[-1],)
    assert {site.message(host).uuid for host in hosts} == {UUID}


def test_a_run_of_a_work_tree_sends_no_trigger(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "20261120T120000.000000Z-0000"
    run.mkdir(parents=True)
    request = {"schema": 1, "work_tree": "/srv/control", "causes": {}}
    (run / "request.json").write_text(json.dumps(request))
    records = Records(run.parent, SystemProcesses())
    assert sending.paths_of(records, run.name) == []
    me, other = NodeName.parse("a.example.com"), NodeName.parse("b.example.com")
    found = next_path(sending.paths_of(records, run.name), me=me, receiver=other)
    assert found == "no trigger is sent: the run uses an unreleased work tree"
