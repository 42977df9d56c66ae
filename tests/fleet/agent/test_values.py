"""What a node publishes about a run has no value of its node document."""

import json

from tests.fleet.agent.test_commands import allow
from tests.rigs.fleet import Fleet

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
    assert last["failure_cause"]["error"].startswith("…: parameter … expects a match for")
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
    listed = a.run("nodes", "--json")
    (found,) = [node for node in listed.json["nodes"] if node["node"] == b.name]
    last = found["last_run"]
    assert (found["outcome"], last["refusal"], last["times"]) == ("refused", "invalid_input", 1)
    assert (last["failed_runs"], last["failing_since"]) == (1, last["started_at"])
    error = last["failure_cause"]["error"]
    assert error.startswith("invalid input: ")
    assert error in a.run("nodes", "--failed").out
    assert CANARY not in error + last["reason"]
    assert f"app/tags/{CANARY}" in b.node.run("status").out
