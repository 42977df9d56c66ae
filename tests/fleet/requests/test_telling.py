"""`report` and `logs` of another node: real agents, over each bus and in two processes."""

import json

from tests.rigs.fleet import Fleet
from tests.rigs.split_member import Split

RIGHTS = "policy default deny\nallow\tchoria={who}\treport log\t*\t*\n"


def test_a_node_returns_the_report_and_the_log_of_its_run(any_fleet: Fleet) -> None:
    a, b = any_fleet.add("a", "b")
    run = (b.root / "var" / "runs") / "20261120T140000.000000Z-abcd"
    run.mkdir(parents=True)
    b.node.write(f"var/runs/{run.name}/log", "Notice: hello\n" * 30_000)
    any_fleet.start()
    denied = a.run("report", "--node", b.name)
    assert (denied.code, "denied" in denied.err) == (1, True)
    b.node.write("policies/puppet.policy", RIGHTS.format(who=a.name))
    told = a.run("logs", "--node", b.name, "--json").json["replies"][b.name]["result"]
    assert told["run"] == run.name
    assert (len(told["lines"]) + told["before"], told["left_out"]) == (30_000, 0)
    shown = a.run("report", "--node", b.name)
    assert (shown.code, "no report of this run" in shown.out) == (1, True)
    assert f"'localpuppet logs {run.name} --node {b.name}' shows Puppet's output" in shown.out
    gone = a.run("logs", "--node", b.name, "20261120T140000.000000Z-dead")
    assert (gone.code, "is not a run" in gone.err) == (1, True)
    assert a.run("report", "--node", b.name, "abcd").code == 2, "a whole id"


def test_a_report_is_shown_as_the_nodes_own_is(split: Split) -> None:
    split.node.write("policies/puppet.policy", RIGHTS.format(who="b.example.com"))
    file = split.node.write("told", "old")
    split.node.app(f"file {{ '{file}': content => 'secret' }} exec {{ '/bin/false': }}")
    split.run_side()
    split.network_side()
    split.node.run("apply", "--", "--show_diff", code=1)
    shown = split.other.run("report", "--node", "a.example.com", code=0)
    assert "Failed 1" in shown.out
    assert "Exec[/bin/false]" in shown.out
    assert f"File[{file}]" in shown.out
    said = split.other.run("logs", "--node", "a.example.com")
    assert "'/bin/false' returned 1" in said.out
    assert "secret" not in shown.out + said.out
    assert "secret" in split.node.run("logs").out, "its own operators see the diff"
    result = split.other.run("logs", "--node", "a.example.com", "--json").json["replies"]
    log = result["a.example.com"]["result"]
    failed = next(
        origin
        for line, origin in zip(log["lines"], log["origins"], strict=True)
        if "change from" in line and "returned 1" in line
    )
    assert failed["file"].endswith("init.pp")
    assert (failed["line"] > 0, failed["time"][:2]) == (True, "20")
    told = split.other.run("report", "--node", "a.example.com", "--json")
    assert json.loads(told.out)["replies"]["a.example.com"]["result"]["report"] is True

    split.node.app(split.node.gate_code())
    split.node.run("apply", "--detach", code=0)
    shown = split.other.run("report", "--node", "a.example.com")
    assert "no report of this run: the run is active" in shown.out
    split.node.open_gate()
    split.node.run("status", "--wait")
