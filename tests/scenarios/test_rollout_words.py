"""Other machines and other people, and the rollout that a process carries out."""

import os
import signal
import subprocess
import time

import pytest

from localpuppet.web.dashboard.reported_rollouts import rollout_reports_of
from tests.rigs.fleet import Fleet
from tests.rigs.member import Member, read_line
from tests.scenarios.test_rollouts import POLICY, Shop

TAKEOVER = "policy default deny\nallow\tchoria=bob.example.com\ttakeover\t*\t*\n"


@pytest.fixture
def shop(fleet: Fleet) -> Shop:
    return Shop(fleet)


def read_until(process: subprocess.Popen[str], text: str) -> None:
    """Read what a process prints until a line that holds a text."""
    while text not in (line := read_line(process)):
        assert line, f"it has ended, and did not print {text!r}"


def run_of(who: Member, *words: str) -> tuple[int, str]:
    """Run a verb of rollouts; return its code and what it prints."""
    done = who.run("rollout", *words)
    return done.code, done.out + done.err


def told_by_nodes(shop: Shop) -> set[tuple[str, str, str]]:
    """Return the caller, the rollout and the result that each node publishes after its run."""
    there = [str(member.name) for member in shop.nodes]
    found = set()
    for status in shop.operator.run("nodes", "--json").json["nodes"]:
        if status["node"] in there:
            (told,) = rollout_reports_of(status, (), now=time.time())
            found.add((told.caller, str(told.rollout), told.outcome))
    return found


def test_commands_come_from_any_machine_of_a_caller_that_the_policy_allows(shop: Shop) -> None:
    """At first Bob has no right; the operator's laptop has no journal of the rollout."""
    bob = shop.fleet.add_one("bob")
    laptop = shop.elsewhere()
    for member in (shop.db, shop.webs[0]):
        member.behave(exit=3)
    options = ("--on-failure", "pause", "--window", "1")
    process = shop.operator.node.start("rollout", "run", "--site", shop.site, *options)
    read_until(process, "paused: 1 node failed")
    own = bob.run("rollout", "stop")
    assert (own.code, "has no rollout of bob.example.com" in own.err) == (2, True)

    say = run_of
    of = ("--operator", str(shop.operator.name))
    code, told = say(bob, "resume", *of)
    assert (code, "denied: this node has no policy" in told) == (2, True)
    shop.operator.node.write("policies/puppet.policy", TAKEOVER)
    code, told = say(bob, "status", *of)
    assert (code, "paused: 1 node failed; none may fail (1 failed, 2 not started)" in told) == (
        0,
        True,
    )
    assert "it is unknown whether a process controls it" in told
    assert say(bob, "resume", *of) == (0, "continued\n")
    read_until(process, "bob.example.com on ")
    read_until(process, "paused: 2 nodes failed")
    code, told = say(laptop, "rollback")
    assert (code, "delivers no release" in told) == (2, True)
    assert say(laptop, "stop")[0] == 0
    shop.operator.node.finish(process, code=1)
    machine = os.uname().nodename
    assert [one["what"] for one in shop.report()["decisions"]] == [  # type: ignore[attr-defined]
        "paused: 1 node failed; none may fail",
        f"continued by choria=bob.example.com on {machine}",
        "paused: 2 nodes failed; none may fail",
        f"no further nodes start: stopped by choria=a.example.com on {machine}",
    ]
    code, told = say(laptop, "pause")
    assert (code, "is over: stopped" in told) == (2, True)
    assert "stopped" in say(laptop, "list", *of)[1]
    assert shop.runs() == [1, 1, 0]
    assert shop.free()


def test_another_person_takes_over_from_a_slow_controller(shop: Shop) -> None:
    """Refused before anything changes if one node's policy does not allow it.

    The first one's machine lets no person take over: its controller learns of it from the nodes.
    """
    bob = shop.fleet.add_one("bob")
    shop.db.behave(gate=True)
    check = ("--check", "/bin/true")
    process = shop.operator.node.start("rollout", "run", "--site", shop.site, *check)
    shop.db.wait_log("history .*started")
    process.send_signal(signal.SIGSTOP)
    of: tuple[str, ...] = ("--operator", str(shop.operator.name))
    allow = POLICY + "allow\tchoria=bob.example.com\t*{}\t*\t*\n"
    for member, more in zip(shop.nodes, (" takeover", " takeover", ""), strict=True):
        actions = f"status disable enable runonce{more}"
        member.node.write("policies/puppet.policy", allow.replace("*{}", actions))
    refused = bob.run("rollout", "resume", *of)
    assert (refused.code, "would run /bin/true as you (--run-checks)" in refused.err) == (2, True)
    of += ("--run-checks",)
    refused = bob.run("rollout", "resume", *of, code=2)
    assert "nothing was changed: web2.example.com: denied by policy line 1" in refused.err
    assert bob.run("rollout", "list").out == "this machine has no rollout\n"
    actions = "status disable enable runonce takeover"
    shop.webs[1].node.write("policies/puppet.policy", allow.replace("*{}", actions))
    shop.db.open_gate()
    resumed = bob.run("rollout", "resume", *of, "--json", code=0)
    assert "over from the controller of a.example.com" in resumed.err
    assert (resumed.json["epoch"], resumed.json["caller"]) == (2, "choria=a.example.com")
    assert resumed.json["counts"] == {"done": 3}
    (decision,) = resumed.json["decisions"]
    assert decision["what"] == f"resumed by choria=bob.example.com on {os.uname().nodename}"
    process.send_signal(signal.SIGCONT)
    ended = shop.operator.node.finish(process)
    assert (ended.code, "was taken over by choria=bob.example.com at 20" in ended.err) == (75, True)
    own = shop.operator.run("rollout", "status", "--json").json
    assert (own["state"], "failed" in own["counts"]) == ("taken over", False)
    assert shop.runs() == [1, 1, 1]
    assert shop.free()
    shop.operator.node.write("policies/puppet.policy", TAKEOVER)
    code, told = run_of(shop.operator, "status", resumed.json["id"], *of[:2])
    assert (code, "done (3 done)" in told) == (0, True)
    assert told_by_nodes(shop) == {("choria=a.example.com", resumed.json["id"], "ended")}
    (ended_there,) = shop.operator.run("rollout", "list", *of[:2], "--json").json["rollouts"]
    assert (ended_there["state"], ended_there["counts"]) == ("done", {"done": 3})
