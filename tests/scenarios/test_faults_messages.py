"""Messages that arrive twice, out of order, late, in circles, or are invalid."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from localpuppet.base.formats.names import SignerName
from localpuppet.base.machine.process_table import SystemClock
from localpuppet.fleet.bus import layout
from localpuppet.fleet.bus.bus_limits import MAX_ASKING, MAX_VALUE
from localpuppet.fleet.bus.layout import KEYPREFIX
from localpuppet.fleet.triggers.cause import Trigger
from localpuppet.fleet.trust.signing import MessageKind, MessageSigner
from tests.doubles.identities import forge, person
from tests.rigs.fleet import Fleet
from tests.rigs.long import with_sample
from tests.rigs.member import Member

UUID = "3f2504e0-4f89-41d3-9a0c-0305e82c3301"


def signer(member: Member) -> MessageSigner:
    return MessageSigner(SignerName(member.name), member.key.load())


def trigger(sender: Member, to: Member, **other: object) -> bytes:
    """Return the payload of a trigger; `other` fields may be wrong."""
    now = int(SystemClock().now().timestamp())
    good = Trigger(
        hostname=sender.name,
        tags=(),
        hosts=(to.name,),
        timestamp=now,
        uuid=UUID,
        ttl=180,
        hops=0,
        path=(sender.name,),
    )
    return json.dumps({**json.loads(good.to_payload()), **other}).encode()


def put(fleet: Fleet, sender: Member, to: Member, *tokens: bytes) -> None:
    """Write tokens, one after the other, where a sender writes its triggers."""

    async def write() -> None:
        async with fleet.bus.open() as kv:
            for token in tokens:
                await kv.put(layout.triggers_for(to.name, KEYPREFIX) + sender.name, token, ttl=180)

    asyncio.run(write())


def taken(fleet: Fleet, sender: Member, to: Member) -> bytes:
    """Return the message that lies on the bus."""

    async def read() -> bytes:
        async with fleet.bus.open() as kv:
            entry = await kv.get(layout.triggers_for(to.name, KEYPREFIX) + sender.name)
            assert entry is not None
            return entry.value

    return asyncio.run(read())


def test_duplicates_and_a_wrong_order(any_fleet: Fleet) -> None:
    fleet = any_fleet
    a, b, c = fleet.add("a", "b", "c")
    fleet.start()
    messages = []
    for _ in range(4):
        (uuid,) = fleet.send(a, b)
        fleet.accepted(b, uuid)
        messages.append(taken(fleet, a, b))
    for order in (messages[::-1], messages, messages[2:] + messages[:2]):
        put(fleet, a, b, *order)
    b.stop()
    put(fleet, a, b, messages[0])
    b.start()  # what it has seen is on its disk
    (last,) = fleet.send(c, b)
    fleet.accepted(b, last)
    fleet.settle()
    assert b.count("accepted") == 5


POISON: dict[str, tuple[Callable[[Member, Member], bytes], str]] = {
    "empty": (lambda _a, _b: b"", "not a signed message"),
    "no JWS": (lambda _a, _b: b"reboot\n\x1b[31m\xff", "not a signed message"),
    "huge": (lambda _a, _b: b"A" * MAX_ASKING, "not a signed message"),
    "dots": (lambda _a, _b: b"." * 100_000, "not a signed message"),
    "unsigned": (
        lambda a, b: forge(person("x").key, {"alg": "none"}, trigger(a, b)),
        "no valid signature",
    ),
    "another typ": (
        lambda a, b: signer(a).sign(trigger(a, b), MessageKind.REQUEST),
        "no valid signature: .*typ",
    ),
    "an unknown key": (
        lambda a, b: MessageSigner(SignerName(a.name), person("x").key).sign(
            trigger(a, b), MessageKind.TRIGGER
        ),
        "no valid signature",
    ),
    "an unknown signer": (
        lambda a, b: person("eve.example.com").signer.sign(
            trigger(a, b, hostname="eve.example.com", path=["eve.example.com"]), MessageKind.TRIGGER
        ),
        "no valid signature",
    ),
    "deep": (lambda a, _b: signer(a).sign(b"[" * 60_000, MessageKind.TRIGGER), "trigger: is "),
    "a long number": (
        lambda a, _b: signer(a).sign(b'{"ttl":' + b"9" * 60_000 + b"}", MessageKind.TRIGGER),
        "trigger: ",
    ),
    "no JSON": (lambda a, _b: signer(a).sign(b"\xff\x00{", MessageKind.TRIGGER), "trigger: is "),
    "another's name": (
        lambda a, b: signer(a).sign(
            trigger(a, b, hostname=str(b.name), path=[str(b.name)]), MessageKind.TRIGGER
        ),
        "the signature is a.example.com's, but the trigger says it is from b.example.com",
    ),
    "for another node": (
        lambda a, b: signer(a).sign(trigger(a, b, hosts=["z.example.com"]), MessageKind.TRIGGER),
        "not addressed to b.example.com",
    ),
    "old": (
        lambda a, b: signer(a).sign(trigger(a, b, timestamp=1_000_000_000), MessageKind.TRIGGER),
        "expired: ",
    ),
}


def test_each_invalid_message_is_a_single_log_line_and_stops_nothing(fleet: Fleet) -> None:
    a, b, c = fleet.add("a", "b", "c")
    fleet.start()
    put(fleet, a, b, b"A" * MAX_VALUE)  # more than a trigger can be: passed over where it is read
    for number, (make, reason) in enumerate(POISON.values(), 1):
        put(fleet, a, b, make(a, b))
        b.wait_log(r"^[\d-]+ [\d:]+ (?:warning: )?dropped a trigger", number)
        lines = [line for line in b.log.splitlines() if "dropped a trigger" in line]
        assert len(lines) == number
        assert lines[-1].isprintable()
        assert len(lines[-1]) < 500
        b.wait_log(f"dropped a trigger.*: .*{reason}")
    (uuid,) = fleet.send(c, b)
    fleet.accepted(b, uuid)
    fleet.settle()
    assert b.count("accepted") == 1
    assert "Traceback" not in b.log


@pytest.mark.parametrize("length", with_sample([2, 3, 4], 3))
def test_a_circle_of_nodes_ends(any_fleet: Fleet, length: int) -> None:
    """o -> a -> b -> ... -> a: each node runs once, and the last one logs that the loop ends."""
    fleet = any_fleet
    origin, *circle = fleet.add("o", *"abcd"[:length])
    for member, following in zip(circle, circle[1:] + circle[:1], strict=True):
        member.behave(notify=[following.name])
    fleet.start()
    fleet.send(origin, circle[0])
    circle[-1].wait_log("history .*loop")
    events = fleet.settle()
    assert [member.count("started") for member in circle] == [1] * length
    (loop,) = [event for event in events if event["what"] == "loop"]
    assert (loop["node"], loop["to"]) == (circle[-1].name, circle[0].name)
    assert loop["reason"].startswith("the loop ends here")


def test_chains_end_if_each_node_notifies_all_others(fleet: Fleet) -> None:
    """Chains end, however coalescing mixes them."""
    origin, *members = fleet.add(*"oabc")
    for member in members:
        member.behave(notify=[other.name for other in members if other is not member])
    fleet.start()
    fleet.send(origin, *members)
    events = fleet.settle()
    assert {event["node"] for event in events if event["what"] == "started"} == {
        member.name for member in members
    }


def test_a_program_in_a_run_begins_no_new_chain(fleet: Fleet) -> None:
    """Also `localpuppet trigger` itself: two nodes that call it would run without end."""
    a, b = fleet.add("a", "b")
    for member, other in ((a, b), (b, a)):
        member.behave(command=["trigger", other.name])
    fleet.start()
    fleet.send(a, b)
    b.wait_log(f"not sent to {a.name}: the loop ends here")
    fleet.settle()
    assert (a.count("started"), b.count("started")) == (0, 1)


def test_on_hold_a_trigger_waits(any_fleet: Fleet) -> None:
    fleet = any_fleet
    a, b = fleet.add("a", "b")
    fleet.start()
    assert b.run("disable", "-m", "database migration").code == 0
    (uuid,) = fleet.send(a, b)
    fleet.accepted(b, uuid)
    b.kill()
    b.start()
    b.wait_log("1 causes that an earlier agent accepted")
    assert b.run("enable").code == 0
    events = fleet.settle()
    assert [event["causes"] for event in events if event["what"] == "started"] == [
        (f"{a.name}/{uuid}",)
    ]


def test_on_hold_a_trigger_expires(fleet: Fleet) -> None:
    a, b = fleet.add("a", "b")
    fleet.start()
    assert b.run("disable", "-m", "database migration").code == 0
    short = fleet.send_short(a, b)
    (long,) = fleet.send(a, b, ttl=3600)
    b.wait_log(f"dropped {a.name}/{short}: expired while the node was on hold: .*migration")
    fleet.accepted(b, long)
    assert b.run("enable").code == 0
    events = fleet.settle()
    assert [event["causes"] for event in events if event["what"] == "started"] == [
        (f"{a.name}/{long}",)
    ]


@pytest.mark.parametrize(
    ("clock", "reason"), [("+1h", r"expired: 36\d\d s old"), ("-1h", r"in the future")]
)
def test_a_clock_that_is_an_hour_off(fleet: Fleet, clock: str, reason: str) -> None:
    """The node accepts nothing, logs the reason, and catches up once the clock is correct."""
    a, b = fleet.add("a", "b")
    (library,) = Path("/usr/lib").glob("*/faketime/libfaketime.so.1")
    fake = [f"LD_PRELOAD={library}", f"FAKETIME={clock}", "FAKETIME_DONT_FAKE_MONOTONIC=1"]
    b.command = ["env", *fake, *b.command]
    a.start()
    b.start()
    (uuid,) = fleet.send(a, b)
    b.wait_log(f"dropped a trigger of {a.name} .*{reason}.*check both clocks")
    assert b.count("accepted") == 0
    b.stop()
    b.command = a.command
    b.start()
    fleet.accepted(b, uuid)
    fleet.settle()
