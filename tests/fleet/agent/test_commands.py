"""The verbs of the bus, as operators call them, against real agents."""

import json
from collections.abc import Sequence

import pytest

from localpuppet.fleet.agent.agent import NO_RUN
from localpuppet.fleet.cli.nodes import NO_AGENT
from tests.fleet.agent.test_puppet_calls import TRIGGER
from tests.rigs.fleet import SHORT_TTLS, Fleet
from tests.rigs.member import Member
from tests.rigs.node import Done, Node

POLICY = "policy default deny\nallow\tchoria=a.example.com\t*\t*\t*\n"


def allow(member: Member, text: str = POLICY) -> None:
    member.node.write("policies/puppet.policy", text)


@pytest.fixture
def two(fleet: Fleet) -> Sequence[Member]:
    a, b = fleet.add("a", "b")
    allow(b)
    fleet.start()
    return a, b


def known(member: Member, name: str) -> None:
    trusted = member.root / "trusted"
    (trusted / f"{name}.pem").write_bytes(next(trusted.glob("*.pem")).read_bytes())


def test_a_short_name_means_the_one_node_that_it_fits(two: Sequence[Member]) -> None:
    a, b = two
    done = a.run("status", "--node", "b", "--json")
    assert (done.code, [*done.json["replies"]], done.err) == (0, [b.name], "")
    done = a.run("trigger", "b")
    assert (done.code, done.err) == (0, f"# 1 node: {b.name}\n"), done.out
    assert done.out.startswith(f"sent to {b.name}\n")
    known(a, "b.example.net")
    several = a.run("status", "--node", "b")
    found = (several.code, "fits several nodes: b.example.com, b.example.net" in several.err)
    assert found == (2, True)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["trigger", "bb.example.com"], "did you mean b.example.com"),
        (["runonce", "b.example.co"], "did you mean b.example.com"),
        (["disable", "-m", "db", "migration"], "see 'localpuppet nodes'"),
        (["history", "xyzzy"], "see 'localpuppet nodes'"),
        (["assign", "b", "app/tags/r1"], "did you mean b.example.com?"),
    ],
)
def test_unknown_names_are_named(two: Sequence[Member], words: list[str], hint: str) -> None:
    done = two[0].run(*words)
    assert (done.code, done.out) == (2, "")
    assert "there is no known node " in done.err
    assert hint in done.err


def test_a_selection_is_the_same_for_every_command(two: Sequence[Member]) -> None:
    """Nodes must match each part: two have the role, one of them is named, one is left out."""
    a, b = two
    for member in two:
        member.publish_entry("web")
    asked = a.run("status", "--role", "web", "--without", a.name, "--json")
    assert [*asked.json["replies"]] == [b.name]
    assert [*a.run("status", "--role", "web", "--json").json["replies"]] == [a.name, b.name]
    assert a.run("trigger", b.name, "--query", "role=web", "--json").json["sent"] == [b.name]
    none = a.run("disable", b.name, "--role", "web", "--without", b.name, "-m", "x")
    assert (none.code, "the selection matches no node" in none.err) == (2, True)
    unknown = a.run("disable", b.name, "--role", "db", "-m", "x")
    assert (unknown.code, "--role: no node has the role db" in unknown.err) == (2, True)
    assert "name nodes, or select them" in a.run("trigger").err


@pytest.mark.parametrize(
    "words",
    [
        ["trigger", "b.example.com"],
        ["runonce", "b.example.com"],
        ["status", "--node", "b.example.com"],
        ["logs", "--node", "b.example.com"],
        ["report", "--role", "web"],
        ["history", "b.example.com"],
        ["disable", "b.example.com", "-m", "x"],
        ["enable", "b.example.com"],
        ["assign", "b.example.com", "app/tags/r1"],
        ["capture", "nodes", "--query", ""],
        ["rollout", "run", "b.example.com"],
        ["nodes"],
        ["nodes", "--watch"],
        ["query", "role=web"],
        ["inventory", "exports"],
        ["inventory", "exports", "--policy"],
        ["inventory", "facts", "b.example.com"],
        ["inventory", "forget", "b.example.com", "--yes"],
    ],
    ids=lambda words: "-".join(words[:2]),
)
def test_without_a_bus_commands_for_others_say_so_at_once(node: Node, words: list[str]) -> None:
    node.settings(node="a.example.com")
    done = node.run(*words)
    assert (done.code, done.out) == (69, "")
    whom = (
        "b.example.com" if "b.example.com" in words and words[0] != "inventory" else "other nodes"
    )
    assert f"cannot ask {whom}: no bus is configured" in done.err
    assert not (node.state / "bus.sqlite").exists()


def call(member: Member, line: object) -> Done:
    """Ask as Puppet code does where no agent listens."""
    return member.node.feed((line if isinstance(line, str) else json.dumps(line)) + "\n", "call")


def test_trigger_with_and_without_waiting(two: Sequence[Member]) -> None:
    a, b = two
    done = a.run("trigger", b.name, "--label", "haproxy", code=0)
    assert done.out.startswith(f"sent to {b.name}\nuuid: ")
    b.wait_log("history .*ended")
    done = a.run("trigger", b.name, "--wait")
    assert (done.code, done.out) == (0, f"{b.name}  ended\n"), done.err
    b.behave(exit=3)
    done = a.run("trigger", b.name, "--wait", "--json", code=1)
    assert done.json["outcomes"][b.name]["outcome"] == "failed"
    assert done.json["sent"] == [b.name]


def test_trigger_without_a_result_in_time_is_unknown(two: Sequence[Member]) -> None:
    a, _ = two
    known(a, "absent.example.com")
    done = a.run("trigger", "absent.example.com", "--wait", "--wait-timeout", "0.2")
    assert (done.code, done.out) == (75, "absent.example.com  unknown: no result arrived in time\n")
    assert done.err == "# the agent of absent.example.com is offline; it has 3m to connect\n"
    done = a.run("trigger", "absent.example.com", "--ttl", "1s", "--wait")
    expected = (1, "absent.example.com  not accepted: its agent was offline, or its log says why\n")
    assert (done.code, done.out) == expected


def test_trigger_of_a_held_node_says_so_and_why_it_was_dropped(two: Sequence[Member]) -> None:
    a, b = two
    b.run("disable", "-m", "migration", code=0)
    a.wait_nodes({a.name: "idle", b.name: "on hold"})
    for ttl in SHORT_TTLS:
        done = a.run("trigger", b.name, "--ttl", f"{ttl}s", "--wait")
        if "not accepted" not in done.out:
            break
    assert done.code == 1
    assert done.out.startswith(f"{b.name}  dropped: expired while the node was on hold: migration")
    assert done.err.startswith(f"# {b.name} is on hold: migration (held by root)")
    asked = a.run("runonce", b.name)
    expected = (0, f"{b.name}: accepted, runs when the hold ends")
    assert (asked.code, asked.out.splitlines()[0]) == expected
    assert "migration (held by root" in asked.out


def test_trigger_that_a_node_refuses_ends_at_once_with_the_reason(fleet: Fleet) -> None:
    a, b, c = fleet.add("a", "b", "c")
    (eve,) = fleet.add("eve", trusted=False)
    allow(b, "policy default deny\n")
    fleet.start()
    # The ttl is longer than any test may take.
    done = a.run("trigger", b.name, "--ttl", "1h", "--wait", "--json", code=1)
    assert "not allowed to trigger this node" in done.json["outcomes"][b.name]["reason"]
    done = eve.run("trigger", c.name, "--ttl", "1h", "--wait", code=1)
    assert done.out.startswith(f"{c.name}  dropped: no valid signature: ")


def test_trigger_of_an_untrusted_node_warns_that_its_outcome_will_be_rejected(fleet: Fleet) -> None:
    (a,) = fleet.add("a")
    (eve,) = fleet.add("eve", trusted=False)
    fleet.start()
    done = a.run("trigger", eve.name, "--wait", "--wait-timeout", "0.2", code=75)
    assert done.err == f"# {eve.name} is not trusted here: its outcome will be rejected\n"


def test_trigger_of_the_sender_itself_is_dropped(two: Sequence[Member]) -> None:
    a, _ = two
    done = a.run("trigger", a.name)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"not sent to {a.name}: the loop ends here")
    assert done.err.endswith("('localpuppet apply' runs it)\n")


@pytest.mark.parametrize(
    "words",
    [
        ["trigger", "*"],
        ["trigger", "b.example.com", "--ttl", "2h"],
        ["trigger", "b.example.com", "--ttl", "-1"],
        ["trigger", "b.example.com", "--wait", "--wait-timeout", "0"],
        ["trigger", "b.example.com", "--label", "a b"],
        ["runonce"],
        ["runonce", "b..example.com"],
        ["runonce", "b.example.com", "--wait-timeout", "6m"],
        ["history", "B_"],
        ["status", "--node", "b.example.com", "--wait"],
        ["status", "20261120T000000", "--node", "b.example.com"],
        ["disable", "b.example.com", "-m", "x", "--owner", "y"],
        ["disable", "b.example.com", "-m", "x\ny"],
        ["disable", "b.example.com", "-m", "x", "--for", "soon"],
        ["enable", "b.example.com", "--owner", "y"],
        ["lease", "a/b", "--", "true"],
        ["lease", "a", "--wait-timeout", "x", "--", "true"],
        ["lease", "a", "--", "/nonexistent"],
        ["lease", "a"],
        ["nodes", "extra"],
        ["inventory", "exports", "--type", "/etc"],
        ["agent", "extra"],
    ],
)
def test_misuse_is_a_single_line(fleet: Fleet, words: list[str]) -> None:
    (a,) = fleet.add("a")
    done = a.run(*words)
    assert (done.code, done.out) == (2, "")
    assert len(done.err.splitlines()) == 1


def test_nodes(fleet: Fleet) -> None:
    a, b = fleet.add("a", "b")
    (eve,) = fleet.add("eve", trusted=False)
    empty = a.run("nodes")
    assert (empty.code, empty.out) == (0, f"{NO_AGENT}\n")
    b.behave(gate=True)
    fleet.start()
    fleet.send(a, b)
    b.wait_log("history .*started")
    a.wait_nodes({a.name: "idle", b.name: "applying", eve.name: "not trusted"})
    *lines, last = a.run("nodes").out.splitlines()
    assert last == "3 nodes: 1 not trusted"
    assert {row["clock_skew"] for row in a.run("nodes", "--json").json["nodes"]} == {None}
    rows = [row.split() for row in lines]
    assert rows[0][:2] == ["NODE", "STATE"]
    assert [row[0] for row in rows[1:]] == [a.name, b.name, eve.name]
    b.behave()
    b.open_gate()
    b.run("disable", "-m", "migration", code=0)
    b.wait_log("run .*ended")
    a.wait_nodes({a.name: "idle", b.name: "on hold", eve.name: "not trusted"})
    assert "migration" in a.run("nodes").out
    # An agent that ends in good order is gone soon, a killed agent when its presence expires.
    eve.stop()
    b.stop()
    a.wait_nodes({a.name: "idle"})


def test_an_unreachable_bus_is_an_error_and_never_an_empty_answer(served_fleet: Fleet) -> None:
    (a,) = served_fleet.add("a")
    served_fleet.bus.server.kill()
    for process in [
        a.node.start(*words.split())
        for words in (
            "nodes",
            "nodes --watch --json",
            "nodes --role web --json",
            "inventory facts --summary role --json",
            "inventory exports --policy",
            "trigger b.example.com",
            "runonce b.example.com",
            "status --node b.example.com",
            "lease x -- true",
        )
    ]:
        done = a.node.finish(process)
        assert (done.code, done.out) == (69, ""), process.args
        assert len(done.err.splitlines()) == 1
    answer = call(a, {**TRIGGER, "hosts": ["b.example.com"]})
    assert answer.code == 0
    assert answer.json["ok"] is False
    assert "\n" not in answer.json["error"]
    served_fleet.bus.server.start()


def test_runonce_waits_for_its_own_run(two: Sequence[Member]) -> None:
    """Each run of these requests ends in another way: no result of an earlier one counts."""
    a, b = two
    done = a.run("runonce", b.name)
    assert (done.code, done.out) == (0, f"{b.name}: accepted\n"), done.err
    b.wait_log("history .*ended")
    b.behave(exit=3)
    failed = a.run("runonce", b.name, "--wait")
    assert (failed.code, failed.out) == (1, f"{b.name}: accepted\n{b.name}  failed\n"), failed.err
    b.behave()
    told = a.run("runonce", b.name, "--wait", "--json").json
    assert told["replies"][b.name]["ok"]
    assert told["outcomes"][b.name]["outcome"] == "ended"
    b.behave(gate=True)
    late = a.run("runonce", b.name, "--wait", "--wait-timeout", "1")
    assert (late.code, "unknown: no result arrived in time" in late.out) == (75, True)
    b.open_gate()


def test_requests_to_many(two: Sequence[Member]) -> None:
    a, b = two
    done = a.run("status", "--node", b.name, "--node", a.name, "--node", b.name, "--json", code=1)
    assert list(done.json["replies"]) == [b.name, a.name]
    assert done.json["replies"][b.name]["result"]["state"] == "idle"
    assert "denied" in done.json["replies"][a.name]["error"], "no policy denies"
    known(a, "absent.example.com")
    silent = a.run("runonce", "absent.example.com", "--wait-timeout", "0.3", code=69)
    assert "did not answer in time" in silent.err


def test_disable_and_enable_another(two: Sequence[Member]) -> None:
    a, b = two
    a.run("disable", b.name, "-m", "rollout 42", "--for", "1h", code=0)
    (hold,) = b.run("status", "--json").json["holds"]
    assert (hold["owner"], hold["reason"]) == ("choria=a.example.com", "rollout 42")
    a.wait_nodes({a.name: "idle", b.name: "on hold"})
    a.run("trigger", b.name)
    b.wait_log("accepted a trigger")
    b.run("disable", "-m", "another's", code=0)
    ended = a.run("enable", b.name, "--json")
    found = [one["reason"] for one in ended.json["replies"][b.name]["result"]["ended"]]
    assert found == ["rollout 42"], "only its own"
    assert b.count("started") == 0
    b.run("enable", code=0)
    b.wait_log("history .*ended")


def test_call_works_without_an_agent(two: Sequence[Member]) -> None:
    a, b = two
    a.stop()
    answer = call(a, {**TRIGGER, "hosts": [b.name, a.name]})
    assert answer.code == 0
    assert (answer.json["ok"], answer.json["sent"]) == (True, [b.name])
    assert [drop["node"] for drop in answer.json["dropped"]] == [a.name]
    b.wait_log("history .*ended")
    refused = call(a, {"verb": "lock", "name": "x", "wait": 0, "run": None})
    assert refused.json["ok"] is False
    assert refused.json["error"].startswith(
        "lock: no process on this node would renew the lease (st"
    )
    for line in ("", "no JSON", "[]", "{}", '{"verb":"x"}', "[" * 100_000):
        answer = call(a, line)
        assert (answer.code, answer.err) == (0, "")
        assert answer.json["ok"] is False


def test_real_puppet_is_run_and_recorded(fleet: Fleet) -> None:
    """Through the supervisor, in a forked child: the record names its causes."""
    (a,) = fleet.add("a")
    (b,) = fleet.add("b", puppet=True)
    allow(b)
    b.node.app("notify { 'hello': }")
    fleet.start()
    done = a.run("trigger", b.name, "--wait", "--json")
    assert done.code == 0, b.log
    end = done.json["outcomes"][b.name]
    assert end["outcome"] == "changed"
    request = json.loads((b.root / "var" / "runs" / end["run"] / "request.json").read_text())
    assert request["cause"] == f"trigger from {a.name}"
    assert request["causes"]["paths"] == [[a.name]]
    told = a.run("status", "--node", b.name, "--json").json["replies"][b.name]["result"]
    assert told["last_run"]["run"] == end["run"]
    b.node.write("input.yaml", "app: nonsense\n")
    dropped = a.run("trigger", b.name, "--wait")
    assert (dropped.code, dropped.out) == (1, f"{b.name}  dropped: {NO_RUN}\n")
    b.wait_log("no run could be started: ")
    fleet.settle()
