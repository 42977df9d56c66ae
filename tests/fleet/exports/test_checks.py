"""What `check`, a run and `exports` report about a policy and collectors, and what is recorded."""

import json
from pathlib import Path

from localpuppet.fleet.exports.held import FILE, HeldExports
from localpuppet.fleet.exports.recording import CollectedResource, CollectorRecord, note_collected
from localpuppet.node.runs.run_records import RunDirectory
from localpuppet.node.runs.run_replies import ReportedQuery, run_context
from tests.fleet.make import resource
from tests.rigs.fleet import Fleet
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
    node.run("check", code=2)


def test_without_a_bus_puppet_runs_without_storeconfigs_and_queries(node: Node) -> None:
    node.app('@@notify { "x": }')
    assert "storeconfigs" not in node.run("apply", "--noop", code=0).out.splitlines()[0]
    (run,) = node.runs()
    command = json.loads((node.state / "runs" / run / "request.json").read_text())["command"]
    assert not [word for word in command if "storeconfigs" in word]
    assert not (node.state / "runs" / run / "exports.json").exists()
    node.app("$found = query_nodes('role=web')\nnotify { \"found ${found}\": }")
    assert "no bus is configured" in node.run("apply", "--noop", code=1).out


def test_a_run_needs_no_bus_unless_it_collects(node: Node) -> None:
    buses = {"nats": {"servers": ["nats://127.0.0.1:1"]}, "timeout": 1}
    node.settings(node="web01.example.com", bus="nats", buses=buses)
    node.app('@@notify { "x": }')
    node.run("apply", "--noop", code=0)
    node.app("Notify <<| |>>")
    assert "Error: Notify <<| |>>: " in node.run("apply", "--noop", code=1).out
    record = node.state / "runs" / node.runs()[-1] / "collected.json"
    (asked,) = json.loads(record.read_text())["collectors"]
    assert (asked["digest"], asked["resources"]) == (None, [])
    assert asked["reason"]


RUN = "20261120T140000.000000Z-00aa"
A, B = "a.example.com", "b.example.com"


def test_check_shows_what_the_collectors_of_the_newest_run_would_take(fleet: Fleet) -> None:
    (me,) = fleet.add("me", puppet=True)
    me.node.app("")
    me.node.write("policies/collect.policy", f"{A}\tHost\t*\n")
    held = HeldExports(me.node.state / FILE)
    held.hold(A, "1", [resource("Host", "x", "web")])
    held.hold(B, "1", [resource("Host", "y", "web"), resource("File", "/etc/sudoers")])
    held.close()
    assert me.run("check", "--json").json["collectors"] == []

    run = RunDirectory(me.node.state / "runs" / RUN)
    run.path.mkdir(parents=True, mode=0o700)
    at = "2026-11-20T14:00:00Z"
    note_collected(run, CollectorRecord(type="Host", filter=["tag", "==", "web"], at=at))
    note_collected(run, CollectorRecord(type="File", filter=None, at=at))
    host, file = me.run("check", "--json").json["collectors"]
    assert [(one["node"], one["resource"]) for one in host["resources"]] == [(A, "Host[x]")]
    assert [(one["node"], one["resource"]) for one in host["left_out"]] == [(B, "Host[y]")]
    assert (file["digest"], "no policy line names File" in file["reason"]) == (None, True)
    shown = me.run("check").out
    for text in (
        "The collectors of the newest run would get now\n",
        "  Host <<| tag == 'web' |>>\n",
        f"    1 resource of {A}\n",
        f"    left out: Host[y] of {B}: no policy line covers this signer and title\n",
        f"    none: File[/etc/sudoers]: {B} exports it, and no policy line",
    ):
        assert text in shown, shown

    lines = me.run("inventory", "exports", "--policy")
    assert "Host <<| tag == 'web' |>>" in lines.err
    assert "Host <<|" not in lines.out
    assert len(me.run("inventory", "exports", "--policy", "--json").json["collectors"]) == 2

    (me.node.state / FILE).write_bytes(b"rubbish" * 1000)
    damaged = me.run("check")  # a copy of other nodes' exports makes no input of this node invalid
    assert (damaged.code, damaged.out.count("held.sqlite: is damaged")) == (0, 2), damaged.err


AT = "2026-11-22T11:00:00.000000Z"


def test_a_report_names_the_nodes_from_which_a_run_collected(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "20261120T140000.000000Z-abcd")
    run.path.mkdir()
    resource = CollectedResource(node="db01", resource="Host[a]", how="as-is", dropped=())
    collector = CollectorRecord(type="Host", filter=None, at=AT, age=2.0, resources=(resource,))
    note_collected(run, collector)
    assert run_context(run).collected == (
        ReportedQuery(text="Host <<| |>>", count=1, names=("db01",), age=2.0, reason=""),
    )
