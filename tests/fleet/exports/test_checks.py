"""What `check`, a run and `exports` report about the policy before a collection."""

import json

from tests.rigs.node import Node


def test_check_reads_the_policy_and_warns_of_lines_that_give_root(node: Node) -> None:
    node.settings(exports={"policy": "policies/mine.policy"})
    node.app("")
    assert not any("mine.policy" in one for one in node.run("check", "--json").json["warnings"])
    node.write("policies/mine.policy", "ca01.example.com\tFile Host\t*\tas-is\n")
    warned = [one for one in node.run("check", "--json").json["warnings"] if "mine.policy" in one]
    assert len(warned) == 1
    assert "takes File as it is" in warned[0]
    node.write("policies/mine.policy", "web01.example.com\tHost\t*\tguarded\n")
    (warned,) = [one for one in node.run("check", "--json").json["warnings"] if "mine" in one]
    assert "takes Host guarded: its title" in warned
    node.write("policies/mine.policy", "*\t*\t*\n")
    refused = node.run("check")
    assert (refused.code, "mine.policy: line 1: a type is a right" in refused.err) == (2, True)
    node.write("policies/mine.policy", "", mode=0o666)
    assert node.run("check").code == 2


def test_without_a_bus_puppet_runs_without_storeconfigs(node: Node) -> None:
    node.app('@@notify { "x": }')
    done = node.run("apply", "--noop")
    assert done.code == 0, done.err
    assert "storeconfigs" not in done.out.splitlines()[0]
    (run,) = node.runs()
    command = json.loads((node.state / "runs" / run / "request.json").read_text())["command"]
    assert not [word for word in command if "storeconfigs" in word]
    assert not (node.state / "runs" / run / "exports.json").exists()


def test_an_unreachable_inventory_is_an_error_and_not_an_empty_list(node: Node) -> None:
    buses = {"nats": {"servers": ["nats://127.0.0.1:1"]}, "timeout": 1}
    node.settings(node="web01.example.com", bus="nats", buses=buses)
    for words in ([], ["--json"], ["--policy"]):
        done = node.run("inventory", "exports", *words)
        assert (done.code, done.out) == (69, ""), done.err
    assert node.run("inventory", "exports", "--type", "/etc").code == 2


def test_without_a_bus_queries_of_other_nodes_are_errors(node: Node) -> None:
    node.app("")
    for words in (
        ["query", "role=web"],
        ["inventory", "exports"],
        ["inventory", "exports", "--policy"],
    ):
        done = node.run(*words)
        assert (done.code, done.out) == (69, ""), words
        assert "cannot ask other nodes: no bus is configured (write 'bus:' there" in done.err
    node.app("$found = query_nodes('role=web')\nnotify { \"found ${found}\": }")
    done = node.run("apply", "--noop")
    assert (done.code, "no bus is configured" in done.out) == (1, True)


def test_a_run_needs_no_bus_unless_it_collects(node: Node) -> None:
    buses = {"nats": {"servers": ["nats://127.0.0.1:1"]}, "timeout": 1}
    node.settings(node="web01.example.com", bus="nats", buses=buses)
    node.app('@@notify { "x": }')
    done = node.run("apply", "--noop")
    assert done.code == 0, done.out
    node.app("Notify <<| |>>")
    done = node.run("apply", "--noop")
    assert done.code == 1
    assert "Error: Notify <<| |>>: " in done.out
    record = node.state / "runs" / node.runs()[-1] / "collected.json"
    (asked,) = json.loads(record.read_text())["collectors"]
    assert (asked["digest"], asked["resources"]) == (None, [])
    assert asked["reason"]
