"""Agents that are killed at every step, hang, or are offline: what they accepted leads to a run."""

import json
from pathlib import Path

import pytest

from tests.rigs.fleet import Fleet
from tests.rigs.long import with_sample
from tests.rigs.member import Member
from tests.rigs.waiting import PATIENCE

STRACE = ["strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync"]


def killed_at_write(number: int) -> list[str]:
    """Return the command prefix that kills a program in its n-th call of fdatasync."""
    return [*STRACE, "-e", f"inject=fdatasync:signal=KILL:when={number}"]


@pytest.mark.parametrize("number", with_sample(range(1, 5), 2, 3))
def test_killed_while_it_writes_down(nats_fleet: Fleet, number: int) -> None:
    """Between a message and its place on the disk, and right behind it."""
    fleet = nats_fleet
    a, b = fleet.add("a", "b")
    b.start(before=killed_at_write(number))
    (uuid,) = fleet.send(a, b)
    b.killed()
    b.say(what="killed")
    b.start()
    fleet.accepted(b, uuid) if f"({uuid})" not in b.log else None
    fleet.settle()
    assert b.count("started") >= 1


@pytest.mark.parametrize("when", ["begin", "end"])
def test_an_agent_is_killed_by_its_own_run(any_fleet: Fleet, when: str) -> None:
    """After acceptance, before its end is written down: the cause leads to one more run."""
    fleet = any_fleet
    a, b = fleet.add("a", "b")
    b.behave(kill=when)
    fleet.start()
    (uuid,) = fleet.send(a, b)
    b.killed()
    b.start()
    b.wait_log("1 causes that an earlier agent accepted wait for a run")
    b.wait_log("history .*started", 2)  # before that, the node has nothing left to do
    events = fleet.settle()
    runs = [event["causes"] for event in events if event["what"] == "started"]
    assert runs == [(f"{a.name}/{uuid}",)] * 2


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


def test_killed_again_and_again(fleet: Fleet) -> None:
    a, b = fleet.add("a", "b")
    for _ in range(5):
        b.start()
        (uuid,) = fleet.send(a, b)
        fleet.accepted(b, uuid)
        b.kill()
    b.start()
    b.wait_log("b.example.com on sqlite", 6)  # all may be done before it can be asked to end
    fleet.settle()


def test_an_agent_is_offline_for_less_than_the_ttl(any_fleet: Fleet) -> None:
    fleet = any_fleet
    a, b, c = fleet.add("a", "b", "c")
    fleet.start()
    b.kill()
    sent = [*fleet.send(a, b), *fleet.send(c, b), *fleet.send(c, b)]
    b.start()
    fleet.accepted(b, sent[0])
    fleet.settle()


def runs_only_for_one_more(fleet: Fleet, sender: Member, receiver: Member, late: str) -> None:
    """Send one more trigger: it leads to the one run that there was; `late` led to none."""
    (good,) = fleet.send(sender, receiver)
    fleet.accepted(receiver, good)
    causes = [event["causes"] for event in fleet.settle() if event["what"] == "started"]
    assert causes == [(f"{sender.name}/{good}",)], f"{late} was too late"


def test_an_agent_is_offline_for_more_than_the_ttl(any_fleet: Fleet) -> None:
    fleet = any_fleet
    a, b, c = fleet.add("a", "b", "c")
    fleet.start()
    b.stop()
    (late,) = fleet.send(a, b, ttl=1, late=True)
    fleet.until_expired(a, b)
    b.start()
    runs_only_for_one_more(fleet, c, b, late)


def test_hanging_for_more_than_the_ttl(any_fleet: Fleet) -> None:
    """Old messages that the bus still has are refused."""
    fleet = any_fleet
    a, b, c = fleet.add("a", "b", "c")
    fleet.start()
    b.freeze()
    (late,) = fleet.send(a, b, ttl=1, late=True)
    fleet.until_expired(a, b)
    b.thaw()
    runs_only_for_one_more(fleet, c, b, late)
    assert f"accepted a trigger from {a.name} ({late})" not in b.log


def test_a_full_disk_ends_the_agent_and_loses_nothing(fleet: Fleet) -> None:
    a, b = fleet.add("a", "b")
    fleet.start()
    inbox = b.root / "var" / "agent" / "inbox.sqlite"
    b.stop()
    kept = inbox.read_bytes() if inbox.exists() else b""
    for file in inbox.parent.glob("inbox.sqlite*"):
        file.unlink()
    inbox.write_bytes(b"this is no database" * 1000)
    b.start()
    assert b.process is not None
    assert b.process.wait(PATIENCE) == 1
    b.process = None
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
        done = b.run("agent")
        assert done.code == 75
        assert "another agent of this node is running" in done.err
    (uuid,) = fleet.send(a, b)
    fleet.accepted(b, uuid)
    fleet.settle()


def test_sigterm_lets_the_run_finish_and_its_sender_gets_the_result(any_fleet: Fleet) -> None:
    fleet = any_fleet
    a, b = fleet.add("a", "b")
    b.behave(gate=True)
    fleet.start()
    waiting = a.node.start("trigger", b.name, "--wait", "--wait-timeout", "5m")
    b.wait_log("history .*started")
    assert b.process is not None
    b.process.terminate()
    b.wait_log("ending after the active run")
    b.open_gate()
    assert b.process.wait(PATIENCE) == 0
    b.process = None
    done = a.node.finish(waiting)
    assert (done.code, done.out) == (0, f"{b.name}  ended\n"), done.err
    fleet.settle()


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
    assert b.process.wait(PATIENCE) == 0
    b.process = None
    assert "failed: exit code -15" in b.log
    assert not Path(b.root / "var" / "agent.sock").exists()
