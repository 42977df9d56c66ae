"""`localpuppet rollout` without nodes; tests/scenarios has tests with nodes."""

from dataclasses import replace

import pytest

from localpuppet.base.formats.names import NodeName, ReleasePath, RolloutId
from localpuppet.base.formats.times import show_time
from localpuppet.rollout.events import (
    Event,
    LastRunsReported,
    NodeResult,
    NodeRun,
    NodesSkipped,
    RolloutEnded,
    RolloutEnding,
    RolloutResumed,
)
from localpuppet.rollout.journal import Journals
from localpuppet.rollout.rollout_options import Delivery
from tests.doubles.ports import FakeClock
from tests.rigs.node import Node
from tests.rigs.terminal import in_terminal
from tests.rigs.waiting import wait_until
from tests.rollout.make import (
    AT,
    ID,
    SALT,
    approved,
    began,
    node,
    rollout_over,
    run_ended,
    runs_started,
)

NODES = (node(1), node(2))
R6 = {"shop/tags/r6": 3}
SITE = "applications: {shop: {web: {node: web01.example.com}}}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the selection matches no node"),
        (["--order", "none"], "--order none requires NODE, --query or --role"),
        (["--site", "@SITE@", "--query", "x"], "select nodes of the inventory: leave out --site"),
        (["--site", "@SITE@", "--window", "2", "--batch", "3"], "exclude each other"),
        (["--site", "@SITE@", "--check", "probe"], "--check: is neither an http or https URL"),
        (["--site", "@SITE@", "--check", "http://a/", "--noop"], "a check needs a changed node"),
        (["--site", "@SITE@", "--max-failures", "x"], "--max-failures: 'x' is not a number"),
        (["--failed-in", "20261122T110000Z-0123", "--noop"], "takes the options of the earlier"),
        (["--query", "role=web", "--order", "none"], "matches no node"),
        (["--site", "@SITE@", "--pause-at-most", "0"], "--pause-at-most: must be positive"),
    ],
)
def test_an_invalid_rollout_is_refused(node: Node, words: list[str], message: str) -> None:
    node.settings(bus="sqlite", node="web01.example.com")
    site = str(node.write("site.yaml", SITE))
    done = node.run("rollout", "run", *(site if word == "@SITE@" else word for word in words))
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert not (node.state / "rollouts").exists()


def written(machine: Node) -> None:
    """Write a stopped rollout: one node unresponsive, one skipped, one not reached."""
    clock = FakeClock()
    events: list[Event] = [
        NodesSkipped(reasons={node(3): "on hold: work"}),
        runs_started(NodeRun(1, node(1)), NodeRun(1, node(2))),
        run_ended(NodeRun(1, node(1)), outcome="changed", run="r1"),
        RolloutResumed(),
        run_ended(NodeRun(1, node(2)), NodeResult.UNRESPONSIVE, reason="did not tell\x1b[2J"),
        RolloutEnded(
            ending=RolloutEnding.STOPPED,
            reason="stopped by SIGINT",
            still_held={node(2): "did not answer"},
        ),
    ]
    journals = Journals(machine.state / "rollouts")
    journal = journals.begin(began([1, 2, 3], [4]), at=show_time(clock.now()))
    for event in events:
        clock.advance(15)
        journal.append(event, at=show_time(clock.now()))
    journal.close()


def test_list_and_status_show_the_rollouts_of_this_machine(node: Node) -> None:
    node.settings(bus="sqlite", node="web01.example.com")
    assert node.run("rollout", "list").out == "this machine has no rollout\n"
    node.run("rollout", "status", code=2)
    written(node)
    listed = node.run("rollout", "list")
    assert listed.out.splitlines()[1] == (
        "20261122T110000Z-0123  stopped  -        choria=alice  2026-11-20 14:00:00 UTC  "
        "1 done, 1 failed, 1 not reached, 1 skipped"
    )
    watched = node.run("rollout", "status", "--watch", code=1)
    assert watched.out == (
        "rollout 20261122T110000Z-0123: test, 4 nodes, 4 runs in 2 groups\n"
        "n03.example.com  skipped: on hold: work\n"
        "n01.example.com  changed (15s)\n"
        "resumed: 2 of 4 nodes left\n"
        "n02.example.com  unresponsive (45s): did not tell\\x1b[2J\n"
        "stopped: by SIGINT (1 done, 1 failed, 1 not reached, 1 skipped)\n"
        "n02.example.com may be held until 2026-11-20 14:11:30 UTC: did not answer\n"
        "the hold expires then; 'localpuppet rollout stop 20261122T110000Z-0123' asks again\n"
        "'localpuppet rollout run --failed-in 20261122T110000Z-0123', "
        "with the same --site if any, repeats the nodes that did not succeed\n"
    )
    status = node.run("rollout", "status").out
    assert "\nn02.example.com  unresponsive: did not tell\\x1b[2J\n" in status
    damaged = node.state / "rollouts" / "20261122T120000Z-0000.sqlite"
    damaged.write_bytes(b"x" * 5000)
    listed = node.run("rollout", "list", code=0)
    assert [line.split()[1] for line in listed.out.splitlines()[1:]] == ["damaged", "stopped"]
    assert f"{damaged}: is damaged" in listed.err
    assert [one["state"] for one in node.run("rollout", "list", "--json").json["rollouts"]] == [
        "damaged",
        "stopped",
    ]
    damaged.unlink()
    shown = node.run("rollout", "report").out
    assert "Resumed  once" in shown
    assert "  n01.example.com  done, changed (15s)  [run r1]\n" in shown
    assert "  n03.example.com  skipped: on hold: work\n" in shown
    assert "  n04.example.com  not reached\n" in shown
    assert node.run("rollout", "report", "--html").out.startswith("<!doctype html>\n<html lang=")
    found = node.run("rollout", "report", "--json").json
    assert found["nodes"][1] == {
        "node": NodeName("n02.example.com"),
        "state": "failed",
        "result": "unresponsive",
        "reason": "did not tell\x1b[2J",
    }
    first = found["groups"][0]["runs"][0]
    assert (first["seconds"], first["result"], first["checked_at"]) == (15.0, "succeeded", None)
    assert first["started_at"] < first["finished_at"] < found["finished_at"]
    assert (found["started_at"], found["reason"]) == (
        "2026-11-20T14:00:00.000000Z",
        "stopped by SIGINT",
    )
    assert found["still_held"] == {"n02.example.com": "did not answer"}
    assert found["held_until"] == {"n02.example.com": "2026-11-20T14:11:30.000000Z"}
    refused = node.run("rollout", "resume", RolloutId("20261122T110000Z-0123"), code=2)
    assert (
        "is a rollout of choria=alice, not of choria=web01.example.com (take it over: --operator"
        in refused.err
    )


def test_failed_nodes_are_repeated_within_the_approval(node: Node) -> None:
    """The approval is an option of the earlier rollout: the new one makes no other changes."""
    node.settings(bus="sqlite", node="web01.example.com")
    parent = approved(began([1], [2]))
    journals = Journals(node.state / "rollouts")
    journal = journals.begin(parent, at=AT)
    failed = run_ended(NodeRun(1, NODES[0]), NodeResult.FAILED, outcome="failed")
    over = rollout_over(RolloutEnding.FAILED, "1 node failed")
    journal.append(runs_started(failed.node_run), failed, over, at=AT)
    journal.close()
    names = ", ".join(f"n{number}: {{node: {one}}}" for number, one in enumerate(NODES))
    site = str(node.write("site.yaml", f"applications: {{shop: {{{names}}}}}\n"))
    process = node.start(
        "rollout", "run", "--site", site, "--failed-in", ID, "--wait-timeout", "5m"
    )
    wait_until(lambda: len(journals.ids()) == 2, lambda: "it does not begin")
    process.kill()
    process.wait()
    again = journals.open(None).state().began
    assert (again.parent, again.approval, again.salt) == (ID, parent.approval, SALT)
    assert (again.options.timeout, parent.options.timeout) == (300, 3600)
    assert sorted(one for group in again.groups for one in group) == list(NODES)


def test_a_rollback_is_shown_and_needs_a_confirmation(node: Node) -> None:
    node.settings(bus="sqlite", node="web01.example.com")
    delivery = Delivery(release=ReleasePath("shop/tags/r7"))
    journal = Journals(node.state / "rollouts").begin(began([1, 2], [3], delivery=delivery), at=AT)
    journal.append(runs_started(NodeRun(1, NODES[0])), at=AT)
    words = ("rollout", "rollback", "--operator", "alice")
    step = f"roll back rollout {ID} (1 node started so far)"
    shown = node.run(*words, "--dry-run")
    assert (shown.code, shown.out) == (0, f"would {step}\n")
    refused = node.run(*words, str(ID))
    assert (refused.code, f"cannot {step} without a confirmation" in refused.err) == (2, True)
    answered = in_terminal(node, *words, typed="n\n")
    assert (answered.code, f"{step}? [y/N]:" in answered.out) == (1, True)
    assert not journal.commands_after(0)
    journal.close()


@pytest.mark.parametrize("command", ["stop", "pause", "rollback"])
def test_a_command_for_an_ended_rollout_leaves_older_ones(node: Node, command: str) -> None:
    """The older one was killed: a command for it would act on its journal or wait for a reply."""
    node.settings(bus="sqlite", node="web01.example.com")
    node.run("keys", "init")
    caller = "choria=web01.example.com"
    first = replace(
        began([1, 2], [3], delivery=Delivery(release=ReleasePath("shop/tags/r7"))), caller=caller
    )
    older = replace(first, id=RolloutId("20261101T110000Z-0123"))
    journals = Journals(node.state / "rollouts")
    over = rollout_over(RolloutEnding.STOPPED, "stopped by x")
    for start, events in (
        (older, ()),
        (first, (LastRunsReported(durations={}, releases=R6), over)),
    ):
        journal = journals.begin(start, at=AT)
        journal.append(runs_started(NodeRun(1, NODES[0])), *events, at=AT)
        journal.close()
    cure = {"rollback": "'localpuppet rollout run --release shop/tags/r6 --allow-older"}
    for words in ((), (str(ID),)):
        done = node.run("rollout", command, *words)
        assert (done.code, f"{ID}: is over: stopped" in done.err) == (2, True), done.err
        assert cure.get(command, "") in done.err
    assert journals.open(older.id).state().over is None
