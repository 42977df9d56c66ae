"""Agents as real processes on each bus; faults are in the scenarios."""

import json
import shutil
import subprocess
from pathlib import Path

from tests.rigs.fleet import Fleet
from tests.rigs.preloaded import OWN_PYTHON
from tests.rigs.waiting import wait_until


def test_a_trigger_makes_another_node_run(any_fleet: Fleet) -> None:
    a, b = any_fleet.add("a", "b")
    any_fleet.start()
    (uuid,) = any_fleet.send(a, b)
    b.wait_log("history .*ended")
    events = any_fleet.settle()
    runs = [event for event in events if event["what"] == "started"]
    assert [(run["node"], run["causes"], run["cause"]) for run in runs] == [
        (b.name, (f"{a.name}/{uuid}",), f"trigger from {a.name}")
    ]


def test_puppets_own_disable_counts_before_localpuppet_knows_puppets_settings(fleet: Fleet) -> None:
    a, b = fleet.add("a", "b")
    (b.root / "var" / "cache" / "puppet.json").unlink()
    hold = b.node.write("puppet/var/state/agent_disabled.lock", '{"disabled_message": "by hand"}')
    fleet.start()
    a.wait_nodes({a.name: "idle", b.name: "on hold"})
    (uuid,) = fleet.send(a, b)
    fleet.accepted(b, uuid)
    hold.unlink()
    events = fleet.settle()
    runs = [event for event in events if event["what"] == "started"]
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
