"""Agents as real processes on each bus, and what they publish; faults are in the scenarios."""

import json
import shutil
import subprocess
from pathlib import Path

from tests.fleet.agent.test_commands import allow
from tests.rigs.fleet import Fleet
from tests.rigs.preloaded import OWN_PYTHON
from tests.rigs.waiting import wait_until


def test_a_trigger_makes_another_node_run(any_fleet: Fleet) -> None:
    a, b = any_fleet.add("a", "b")
    any_fleet.start()
    (uuid,) = any_fleet.send(a, b)
    b.wait_log("history .*ended")
    runs = [event for event in any_fleet.settle() if event["what"] == "started"]
    expected = [(b.name, (f"{a.name}/{uuid}",), f"trigger from {a.name}")]
    assert [(run["node"], run["causes"], run["cause"]) for run in runs] == expected


def test_puppets_own_disable_counts_before_localpuppet_knows_puppets_settings(fleet: Fleet) -> None:
    a, b = fleet.add("a", "b")
    (b.root / "var" / "cache" / "puppet.json").unlink()
    hold = b.node.write("puppet/var/state/agent_disabled.lock", '{"disabled_message": "by hand"}')
    fleet.start()
    a.wait_nodes({a.name: "idle", b.name: "on hold"})
    (uuid,) = fleet.send(a, b)
    fleet.accepted(b, uuid)
    hold.unlink()
    runs = [event for event in fleet.settle() if event["what"] == "started"]
    assert [run["causes"] for run in runs] == [(f"{a.name}/{uuid}",)]


def test_an_agent_that_signs_with_another_name_logs_a_warning(fleet: Fleet) -> None:
    a, b = fleet.add("a", "b")
    settings = json.loads((b.root / "localpuppet.yaml").read_text())
    b.node.write("localpuppet.yaml", json.dumps({**settings, "identity": {"name": "alice"}}))
    b.start()
    b.wait_log("it signs as alice: other nodes reject its status of b.example.com")
    a.wait_nodes({b.name: "not trusted"})


def test_an_agent_keeps_no_reader_of_documents_in_memory(fleet: Fleet) -> None:
    """Also at its first start, when no settings are cached: a child reads them."""
    (a,) = fleet.add("a")
    shutil.rmtree(a.root / "var" / "cache" / "documents", ignore_errors=True)
    a.start(before=OWN_PYTHON)
    fleet.present(a)
    assert a.process is not None
    libraries = Path(f"/proc/{a.process.pid}/maps").read_text()
    assert "/cryptography/" in libraries
    assert "/rpds/" not in libraries, "a part of jsonschema"
    assert "/yaml/" not in libraries


def test_nodes_shows_the_run_lock_that_blocks_a_run_and_an_agent_is_no_owner(fleet: Fleet) -> None:
    a, b = fleet.add_one("a", puppet=True), fleet.add_one("b")
    a.node.app("notify { 'hello': }")
    a.start()
    assert a.process is not None
    lock = a.root / "puppet/var/state/agent_catalog_run.lock"
    with subprocess.Popen(["ruby", "-e", "sleep", "puppet"]) as ruby:
        try:
            a.node.write("puppet/var/state/agent_catalog_run.lock", str(ruby.pid))
            fleet.send(b, a)
            blocked = f"a puppet agent run (pid {ruby.pid}) is using this node"
            wait_until(lambda: blocked in a.run("nodes").out, lambda: a.run("nodes").out)
            # The pid of the agent itself, in a lock that is younger than the agent.
            lock.write_text(str(a.process.pid))
            a.wait_log("run .* changed")
            (row,) = a.run("nodes", "--json").json["nodes"]
            assert row["blocked"] is None
        finally:
            ruby.kill()


CANARY = "canary-5c8f1e"


def test_puppets_error_texts_stay_on_the_node(fleet: Fleet) -> None:
    """Puppet's error repeats a value that does not fit its type."""
    (a,) = fleet.add("a")
    (b,) = fleet.add("b", puppet=True)
    b.node.write("modules/app/trunk/manifest.yaml", "modulepath: []\n")
    b.node.write(
        "modules/app/trunk/app/manifests/init.pp", "class app (Pattern[/^ok/] $token) {}\n"
    )
    b.node.write(
        "input.yaml", json.dumps({"app": "app/trunk", "classes": {"app": {"token": CANARY}}})
    )
    allow(b)
    fleet.start()
    done = a.run("trigger", b.name, "--wait")
    assert (done.code, f"{b.name}  failed" in done.out) == (1, True), done.out + done.err
    assert CANARY in b.node.run("status", "--json").json["run"]["reason"], "its own record has it"
    nodes = a.run("nodes", "--json")
    (last,) = [node["last_run"] for node in nodes.json["nodes"] if node["node"] == b.name]
    assert last["category"] == "no_report"
    error = "Class[App]: parameter 'token' expects a match for"
    assert last["failure_cause"]["error"].startswith(error)
    assert last["reason"].startswith("compile failed")
    assert last["failure_cause"]["error"][:20] in last["reason"], "a rollout shows it"
    assert last["run"] == b.node.runs()[-1]
    told = [nodes, a.run("status", "--node", b.name, "--json"), a.run("report", "--node", b.name)]
    for other in told:
        assert CANARY not in other.out + other.err, other
    assert CANARY not in b.log, "nor is it in the journal"


def test_an_apply_that_is_refused_is_the_last_result_of_its_node(fleet: Fleet) -> None:
    (a,) = fleet.add("a")
    (b,) = fleet.add("b", puppet=True)
    b.node.write("input.yaml", f"app: app/tags/{CANARY}\n")
    allow(b)
    fleet.start()
    a.run("trigger", b.name, "--wait")
    (found,) = [node for node in a.run("nodes", "--json").json["nodes"] if node["node"] == b.name]
    last = found["last_run"]
    assert (found["outcome"], last["refusal"], last["times"]) == ("refused", "invalid_input", 1)
    assert (last["failed_runs"], last["failing_since"]) == (1, last["started_at"])
    error = last["failure_cause"]["error"]
    assert error.startswith("invalid input: ")
    assert error in a.run("nodes", "--failed").out
    assert CANARY not in error + last["reason"]
    assert f"app/tags/{CANARY}" in b.node.run("status").out
