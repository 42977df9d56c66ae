"""Agents that are killed at every step, hang, or are offline: what they accepted leads to a run."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rigs.buses import BUSES
from tests.rigs.fleet import Fleet
from tests.rigs.long import with_sample
from tests.rigs.member import Member
from tests.rigs.waiting import PATIENCE

STRACE = ["strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync"]


def ended(member: Member) -> int:
    """Return the exit code of an agent that ends."""
    assert member.process is not None
    code = member.process.wait(PATIENCE)
    member.process = None
    return code


def causes_of_runs(fleet: Fleet) -> list[tuple[str, ...]]:
    return [event["causes"] for event in fleet.settle() if event["what"] == "started"]


@pytest.mark.parametrize("number", with_sample(range(1, 5), 2, 3))
def test_killed_while_it_writes_down(nats_fleet: Fleet, number: int) -> None:
    """Between a message and its place on the disk, and right behind it."""
    fleet = nats_fleet
    a, b = fleet.add("a", "b")
    b.start(before=[*STRACE, "-e", f"inject=fdatasync:signal=KILL:when={number}"])
    (uuid,) = fleet.send(a, b)
    b.killed()
    b.say(what="killed")
    b.start()
    fleet.accepted(b, uuid) if f"({uuid})" not in b.log else None
    fleet.settle()
    assert b.count("started") >= 1


@pytest.mark.parametrize("when", ["begin", "end"])
def test_an_agent_is_killed_by_its_own_run(fleet: Fleet, when: str) -> None:
    """After acceptance, before its end is written down: the cause leads to one more run."""
    a, b = fleet.add("a", "b")
    b.behave(kill=when)
    fleet.start()
    (uuid,) = fleet.send(a, b)
    b.killed()
    b.start()
    b.wait_log("1 causes that an earlier agent accepted wait for a run")
    b.wait_log("history .*started", 2)  # before that, the node has nothing left to do
    assert causes_of_runs(fleet) == [(f"{a.name}/{uuid}",)] * 2


def test_an_agent_is_killed_during_a_run_that_continues(fleet: Fleet) -> None:
    """The next agent waits for the command of the agent before: never two at once."""
    a, b = fleet.add("a", "b")
    b.behave(gate=True)
    fleet.start()
    fleet.send(a, b)
    b.wait_log("history .*started")
    b.kill()
    b.start()
    b.wait_log(
        "postponed the run, trying again soon: the command of an earlier agent is still running"
    )
    fleet.send(a, b)
    b.behave()
    b.open_gate()
    fleet.settle()


@pytest.mark.parametrize(
    ("leave", "come_back"),
    [(Member.kill, Member.start), (Member.freeze, Member.thaw)],
    ids=["killed", "frozen"],
)
def test_what_expires_while_an_agent_is_away_leads_to_no_run(
    fleet: Fleet, leave: Callable[[Member], None], come_back: Callable[[Member], None]
) -> None:
    """What does not expire leads to one run; of each sender, the bus keeps the newest."""
    a, b, c = fleet.add("a", "b", "c")
    fleet.start()
    leave(b)
    (late,) = fleet.send(a, b, ttl=1, late=True)
    fleet.send(c, b)
    (good,) = fleet.send(c, b)
    fleet.until_expired(a, b)
    come_back(b)
    fleet.accepted(b, good)
    assert causes_of_runs(fleet) == [(f"{c.name}/{good}",)], f"{late} was too late"
    assert f"accepted a trigger from {a.name} ({late})" not in b.log


def test_a_damaged_inbox_ends_the_agent_and_loses_nothing(fleet: Fleet) -> None:
    a, b = fleet.add("a", "b")
    fleet.start()
    inbox = b.root / "var" / "agent" / "inbox.sqlite"
    b.stop()
    kept = inbox.read_bytes()
    for file in inbox.parent.glob("inbox.sqlite*"):
        file.unlink()
    inbox.write_bytes(b"this is no database" * 1000)
    b.start()
    assert ended(b) == 1
    assert "is damaged" in b.log
    assert "Traceback" not in b.log
    (uuid,) = fleet.send(a, b)
    inbox.write_bytes(kept)
    b.start()
    fleet.accepted(b, uuid)
    fleet.settle()


def test_a_second_agent_is_refused_and_the_first_keeps_running(fleet: Fleet) -> None:
    a, b = fleet.add("a", "b")
    fleet.start()
    settings = b.root / "localpuppet.yaml"
    for socket in (fleet.sockets / "b", fleet.sockets / "elsewhere"):
        known = json.loads(settings.read_text("utf-8"))
        settings.write_text(json.dumps({**known, "socket": str(socket)}), "utf-8")
        done = b.run("agent", code=75)
        assert "another agent of this node is running" in done.err
    (uuid,) = fleet.send(a, b)
    fleet.accepted(b, uuid)
    fleet.settle()


@pytest.mark.parametrize("bus", BUSES)
def test_sigterm_lets_the_run_finish_and_its_sender_gets_the_result(
    lent_fleet: Callable[[str], Fleet], bus: str
) -> None:
    """The one scenario on each engine: a trigger, its run, the result, a second trigger."""
    fleet = lent_fleet(bus)
    a, b = fleet.add("a", "b")
    b.behave(gate=True)
    fleet.start()
    waiting = a.node.start("trigger", b.name, "--wait", "--wait-timeout", "5m")
    b.wait_log("history .*started")
    assert b.process is not None
    b.process.terminate()
    b.wait_log("ending after the active run")
    (later,) = fleet.send(a, b)
    b.open_gate()
    assert ended(b) == 0
    done = a.node.finish(waiting)
    assert (done.code, done.out) == (0, f"{b.name}  ended\n"), done.err
    b.behave()
    b.start()
    fleet.accepted(b, later) if f"({later})" not in b.log else None
    fleet.settle()
    assert b.count("started") == 2


def test_a_second_term_ends_the_run(fleet: Fleet) -> None:
    a, b = fleet.add("a", "b")
    b.behave(gate=True)
    fleet.start()
    fleet.send(a, b)
    b.wait_log("history .*started")
    assert b.process is not None
    b.process.terminate()
    b.wait_log("ending after the active run")
    b.process.terminate()
    assert ended(b) == 0
    assert "failed: exit code -15" in b.log
    assert not Path(b.root / "var" / "agent.sock").exists()
