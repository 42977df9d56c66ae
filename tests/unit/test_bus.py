"""The recipes of the bus, over a store in memory and a clock of our own."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from localpuppet.bus import layout
from localpuppet.errors import InvalidInputError, UnavailableError
from localpuppet.formats.names import NodeName
from localpuppet.inventory import presence
from localpuppet.leases.lease import Leases, Use
from localpuppet.requests import exchange
from localpuppet.triggers import sending
from localpuppet.triggers.trigger import Trigger
from localpuppet.trust.signing import Kind, claimed_payload
from tests.fakes import FakeClock
from tests.fakes_key_value import MemoryKeyValue, MemoryStore
from tests.identities import person, verifier

A, B, C = (NodeName.parse(f"{letter}.example.com") for letter in "abc")
UUID = "3f2504e0-4f89-41d3-9a0c-0305e82c3301"
ORIGIN: tuple[NodeName, ...] = ()


class Site:
    """A store, a clock, and clients."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(now=self.clock.monotonic)
        self.sender = person(A)

    def client(self) -> MemoryKeyValue:
        return MemoryKeyValue(self.store)

    def leases(self, holder: str, session: str = "1") -> Leases:
        return Leases(self.client(), self.clock, holder=holder, session=session)

    async def send(
        self, *hosts: NodeName, paths: list[tuple[NodeName, ...]], tags: tuple[str, ...] = ("web",)
    ) -> sending.Sent:
        call = sending.Call(hosts=hosts, tags=tags, ttl=60, keyprefix="/t/events", keyttl=90)
        return await sending.send(
            call,
            kv=self.client(),
            signer=self.sender.signer,
            paths=paths,
            clock=self.clock,
            uuid=UUID,
        )

    def message(self, host: NodeName) -> Trigger:
        entry = self.store.get(f"/t/events/hosts/{host}/{A}")
        assert entry is not None
        return Trigger.parse(claimed_payload(entry.value))


async def test_a_trigger_is_signed_and_lies_below_its_receiver(tmp_path: Path) -> None:
    site = Site()
    sent = await site.send(B, C, B, paths=[ORIGIN])
    assert (sent.uuid, sent.sent, sent.dropped) == (UUID, (B, C), {})
    message = site.message(B)
    assert (message.hostname, message.hosts, message.path, message.ttl) == (A, (B, C), (A,), 60)
    entry = site.store.get(f"/t/events/hosts/{B}/{A}")
    assert entry is not None
    assert (
        verifier(tmp_path, site.sender).verify(entry.value, Kind.TRIGGER).signer == site.sender.name
    )
    site.clock.advance(91)
    assert site.store.get(f"/t/events/hosts/{B}/{A}") is None


async def test_what_no_receiver_would_take_is_not_sent() -> None:
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
    assert site.message(C).hosts == (C, d), "one message for those of a path"


async def test_more_receivers_than_a_message_names() -> None:
    site = Site()
    hosts = [NodeName(f"n{index}.example.com") for index in range(sending.TOGETHER + 1)]
    sent = await site.send(*hosts, paths=[ORIGIN])
    assert len(sent.sent) == sending.TOGETHER + 1
    assert site.message(hosts[0]).hosts == tuple(hosts[: sending.TOGETHER])
    assert site.message(hosts[-1]).hosts == (hosts[-1],)


async def test_a_store_that_is_away_raises_its_own_error() -> None:
    site = Site()
    site.store.away = True
    with pytest.raises(UnavailableError):
        await site.send(B, C, paths=[ORIGIN])


async def test_a_lease_has_one_holder_and_is_given_back() -> None:
    site = Site()
    one, other = site.leases(A), site.leases(B)
    held = await one.take("db", ttl=30)
    assert held is not None
    assert await other.take("db", ttl=30) is None
    assert await other.holder("db") == A
    assert await one.give_back(held)
    assert not await one.give_back(held), "not twice"
    assert await other.take("db", ttl=30) is not None


async def test_a_lease_lasts_from_before_its_write() -> None:
    site = Site()
    held = await site.leases(A).take("db", ttl=30)
    assert held is not None
    assert held.until == site.clock.monotonic() + 30
    site.clock.advance(20)
    renewed = await site.leases(A).renew(held)
    assert renewed is not None
    assert renewed.until == site.clock.monotonic() + 30
    assert renewed.revision > held.revision
    assert await site.leases(A).renew(held) is None, "fenced by its revision"


async def test_a_paused_holder_notices() -> None:
    site = Site()
    held = await site.leases(A).take("db", ttl=30)
    assert held is not None
    site.clock.advance(31)
    assert site.clock.monotonic() > held.until
    assert await site.leases(B).take("db", ttl=30) is not None
    assert await site.leases(A).renew(held) is None
    assert not await site.leases(A).give_back(held), "and takes nothing from the next"
    assert await site.leases(B).holder("db") == B


async def test_a_restarted_holder_takes_its_own_over_and_fences_its_former_self() -> None:
    site = Site()
    held = await site.leases(A, "1").take("db", ttl=30, use=Use.LEADER)
    assert held is not None
    later = site.leases(A, "2")
    assert await later.take("db", ttl=30, use=Use.LEADER) is None
    assert await site.leases(B, "2").take("db", ttl=30, use=Use.LEADER, over=True) is None
    assert await later.take("db", ttl=30, use=Use.LEADER, over=True) is not None
    assert await site.leases(A, "1").renew(held) is None


@pytest.mark.parametrize("use", [Use.COMMAND, Use.LOCK])
async def test_what_a_command_or_a_lock_has_is_nobodys_to_take_over(use: Use) -> None:
    site = Site()
    held = await site.leases(A, "1").take("db", ttl=30, use=use)
    assert held is not None
    later = site.leases(A, "2")
    assert await later.take("db", ttl=30, use=Use.LEADER, over=True) is None
    assert await site.leases(A, "1").renew(held) is not None
    assert await later.holder("db") == A
    assert await later.leader("db") is None, "nobody leads by that name"


async def test_a_lease_is_found_again_by_the_process_that_comes_after() -> None:
    site = Site()
    held = await site.leases(A, "1").take("db", ttl=30)
    assert held is not None
    renewed = await site.leases(A, "1").renew(held)
    assert renewed is not None
    found = await site.leases(A, "2").find(held)
    assert found is not None
    assert found.revision == renewed.revision
    site.store.kept.clear()
    assert await site.leases(A, "2").find(held) is None, "it has expired"
    assert await site.leases(A, "1").take("db", ttl=30) is not None
    assert await site.leases(A, "2").find(replace(held, value=b"another's")) is None


async def test_waiting_for_a_lease_ends_when_it_is_free() -> None:
    site = Site()
    held = await site.leases(A).take("db", ttl=30)
    assert held is not None
    waiting = asyncio.create_task(site.leases(B).wait("db", ttl=30, patience=1000))
    while not site.store.watchers:
        await asyncio.sleep(0)
    assert not waiting.done()
    await site.leases(A).give_back(held)
    found = await waiting
    assert found is not None
    assert await site.leases(C).wait("db", ttl=30, patience=0) is None


async def test_what_is_no_lease_is_an_error() -> None:
    site = Site()
    await site.client().put(f"{layout.BASE}/leases/db", b"rubbish")
    with pytest.raises(UnavailableError, match="no lease"):
        await site.leases(A).holder("db")


@pytest.mark.parametrize("name", ["", "a/b", ".x", "-x", "a b", "x" * 101, "ä", "a\n"])
def test_names_of_leases(name: str) -> None:
    with pytest.raises(InvalidInputError, match="is no name of a lease"):
        layout.parse_lease_name(name)


async def test_a_request_and_its_reply() -> None:
    site = Site()
    kv = site.client()
    asked = exchange.ask(kv, b"question", caller="alice", node=B, request=UUID, ttl=60)
    waiting = asyncio.create_task(anext(asked))
    while not (there := (await kv.list(layout.requests_for(B))).entries):
        await asyncio.sleep(0)
    assert (there[0].key, there[0].value) == (
        f"{layout.BASE}/requests/{B}/alice/{UUID}",
        b"question",
    )
    await exchange.reply(kv, b"another", caller="alice", node=B, request=UUID[::-1])
    await exchange.reply(kv, b"answer", caller="alice", node=B, request=UUID)
    assert await waiting == b"answer"
    await asked.aclose()
    assert not site.store.watchers


async def test_presence_comes_and_goes() -> None:
    site = Site()
    kv = site.client()
    await presence.announce(kv, A, b"here")
    await presence.announce(kv, B, b"leaving", ttl=presence.FAREWELL_TTL)
    assert await presence.nodes(kv) == {A: b"here", B: b"leaving"}
    site.clock.advance(presence.FAREWELL_TTL)
    assert await presence.nodes(kv) == {A: b"here"}
    site.clock.advance(presence.PRESENCE_TTL)
    assert await presence.nodes(kv) == {}
    site.store.away = True
    with pytest.raises(UnavailableError):
        await presence.nodes(kv)


def test_what_a_lease_says_is_json() -> None:
    site = Site()

    async def value() -> bytes:
        held = await site.leases(A, "s").take("db", ttl=1)
        assert held is not None
        return held.value

    assert json.loads(asyncio.run(value())) == {
        "holder": A,
        "session": "s",
        "use": "command",
    }
