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
from tests.doubles.identities import person
from tests.rigs.fleet import Fleet
from tests.rigs.member import Member
from tests.scenarios.test_faults_agent import causes_of_runs

UUID = "3f2504e0-4f89-41d3-9a0c-0305e82c3301"


def signed(sender: Member, payload: bytes, kind: MessageKind = MessageKind.TRIGGER) -> bytes:
    return MessageSigner(SignerName(sender.name), sender.key.load()).sign(payload, kind)


def trigger(sender: Member, to: Member, **other: object) -> bytes:
    """Return the payload of a trigger; `other` fields may be wrong."""
    good = Trigger(
        hostname=sender.name,
        tags=(),
        hosts=(to.name,),
        timestamp=int(SystemClock().now().timestamp()),
        uuid=UUID,
        ttl=180,
        hops=0,
        path=(sender.name,),
    )
    return json.dumps({**json.loads(good.to_payload()), **other}).encode()


def put(fleet: Fleet, sender: Member, to: Member, *tokens: bytes) -> bytes:
    """Write tokens where a sender writes its triggers; return the message that lies there."""

    async def write() -> bytes:
        key = layout.triggers_for(to.name, KEYPREFIX) + sender.name
        async with fleet.bus.open() as kv:
            for token in tokens:
                await kv.put(key, token, ttl=180)
            entry = await kv.get(key)
            assert entry is not None
            return entry.value

    return asyncio.run(write())


def test_duplicates_and_a_wrong_order(fleet: Fleet) -> None:
    a, b, c = fleet.add("a", "b", "c")
    fleet.start()
    messages = []
    for _ in range(4):
        (uuid,) = fleet.send(a, b)
        fleet.accepted(b, uuid)
        messages.append(put(fleet, a, b))
    for order in (messages[::-1], messages, messages[2:] + messages[:2]):
        put(fleet, a, b, *order)
    b.stop()
    put(fleet, a, b, messages[0])
    b.start()  # what it has seen is on its disk
    (last,) = fleet.send(c, b)
    fleet.accepted(b, last)
    fleet.settle()
    assert b.count("accepted") == 5


# One of each place that refuses: form, signature, payload, sender, time.
POISON: list[tuple[Callable[[Member, Member], bytes], str]] = [
    (lambda _a, _b: b"reboot\n\x1b[31m\xff", "not a signed message"),
    (lambda _a, _b: b"A" * MAX_ASKING, "not a signed message"),
    (lambda a, b: signed(a, trigger(a, b), MessageKind.REQUEST), "no valid signature: .*typ"),
    (
        lambda a, b: person("eve.example.com").signer.sign(
            trigger(a, b, hostname="eve.example.com", path=["eve.example.com"]), MessageKind.TRIGGER
        ),
        "no valid signature",
    ),
    (lambda a, _b: signed(a, b"[" * 60_000), "trigger: is "),
    (
        lambda a, b: signed(a, trigger(a, b, hostname=str(b.name), path=[str(b.name)])),
        "the signature is a.example.com's, but the trigger says it is from b.example.com",
    ),
    (lambda a, b: signed(a, trigger(a, b, timestamp=1_000_000_000)), "expired: "),
]


def test_each_invalid_message_is_a_single_log_line_and_stops_nothing(fleet: Fleet) -> None:
    a, b, c = fleet.add("a", "b", "c")
    fleet.start()
    put(fleet, a, b, b"A" * MAX_VALUE)  # more than a trigger can be: passed over where it is read
    for number, (make, reason) in enumerate(POISON, 1):
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


def test_a_circle_of_nodes_ends(fleet: Fleet) -> None:
    """o -> a -> b -> c -> a: each node runs once, and the last one logs that the loop ends."""
    origin, *circle = fleet.add(*"oabc")
    for member, following in zip(circle, circle[1:] + circle[:1], strict=True):
        member.behave(notify=[following.name])
    fleet.start()
    fleet.send(origin, circle[0])
    circle[-1].wait_log("history .*loop")
    events = fleet.settle()
    assert [member.count("started") for member in circle] == [1, 1, 1]
    (loop,) = [event for event in events if event["what"] == "loop"]
    assert (loop["node"], loop["to"]) == (circle[-1].name, circle[0].name)
    assert loop["reason"].startswith("the loop ends here")


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


def test_on_hold_a_trigger_waits_or_expires(fleet: Fleet) -> None:
    """Also over a kill, which may come between the line of a drop and its record."""
    a, b = fleet.add("a", "b")
    fleet.start()
    b.run("disable", "-m", "database migration", code=0)
    short = fleet.send_short(a, b)
    (long,) = fleet.send(a, b, ttl=3600)
    b.wait_log(f"dropped {a.name}/{short}: expired while the node was on hold: .*migration")
    fleet.accepted(b, long)
    b.kill()
    b.start()
    b.wait_log(rf"still waiting for a run: a trigger from {a.name} \({long}\)")
    b.run("enable", code=0)
    assert causes_of_runs(fleet) == [(f"{a.name}/{long}",)]


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
