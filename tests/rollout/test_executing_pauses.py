"""Rollouts that wait for a command or an approval, and the holds that stay after them."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.times import parse_time
from localpuppet.rollout.commands import RolloutCommand, about
from localpuppet.rollout.deliveries import NodeRunAnswer
from localpuppet.rollout.events import (
    ChangesPredicted,
    ExportDependency,
    NodeResult,
    NodeRun,
    RolloutContinued,
    RolloutEnded,
    RolloutEnding,
    RolloutPaused,
    RolloutResumed,
)
from localpuppet.rollout.executing import LOOKS, RENEW, Execution
from localpuppet.rollout.rollout_options import OnFailure, PauseAfter
from localpuppet.rollout.state import RolloutState
from tests.doubles.simulated_loop import run_simulated
from tests.rollout.make import (
    AT,
    Notes,
    SimulatedNodes,
    approved,
    began,
    begun,
    carry_out,
    change,
    entry_of,
    execution,
    foretold,
    new,
    node,
    reported,
    run_ended,
    words,
)

pytestmark = pytest.mark.simulated
PAUSES = began([1, 2, 3], [4], [5], window=1, on_failure=OnFailure.PAUSE)


async def test_failures_pause_a_rollout_until_an_operator_continues_it() -> None:
    """Two fail: each of them pauses, what runs ends, and holds are renewed meanwhile."""

    notes, nodes = Notes(), SimulatedNodes(bad={node(1), node(3)})
    rollout, doing = await begun(PAUSES, nodes, notes, after=3 * RENEW)
    assert rollout.state.waits
    assert list(nodes.ran) == [NodeRun(1, node(1))]
    assert nodes.holds == 1 + 2
    assert len(nodes.held) == 5
    notes.words += [(RolloutCommand.CONTINUE, "bob")] * 2
    await asyncio.sleep(10)
    assert rollout.state.waits, "the second command was for the same pause"
    assert len(nodes.ran) == 3
    notes.words.append((RolloutCommand.CONTINUE, "carol"))
    over = await doing
    assert over.ending is RolloutEnding.DONE
    assert words(rollout.state) == ["failed", "succeeded", "failed", "succeeded", "succeeded"]
    said = [one.caller for one in notes.events if isinstance(one, RolloutContinued)]
    assert said == ["bob", "carol"]
    assert nodes.held == set()


@pytest.mark.parametrize("word", [None, RolloutCommand.STOP])
async def test_a_pause_ends_by_a_command_or_its_deadline(word: RolloutCommand | None) -> None:
    notes, nodes = Notes(), SimulatedNodes(bad={node(1)})
    _, doing = await begun(PAUSES, nodes, notes, after=100)
    if word is not None:
        notes.words.append((word, "bob"))
    over = await doing
    assert over.ending is RolloutEnding.STOPPED
    if word is None:
        assert over.reason == "no decision within 1h: 1 node failed; none may fail"
        assert 3600 < asyncio.get_running_loop().time() < 3610
    else:
        assert over.reason == "stopped by bob on pc"
    assert nodes.held == set()
    notes.words.clear()
    again = execution(RolloutState.of(notes.events), nodes, notes)
    assert (await again.run(RolloutResumed())).ending is RolloutEnding.DONE
    assert words(again.state) == ["failed", *["succeeded"] * 4]


@pytest.mark.parametrize("continues", [True, False])
async def test_a_killed_rollout_is_still_paused_and_its_time_counts(continues: bool) -> None:
    notes, nodes = Notes(), SimulatedNodes(bad={node(1)})
    _, doing = await begun(PAUSES, nodes, notes, after=1800)
    doing.cancel()
    await asyncio.wait([doing])
    await asyncio.sleep(1000)
    again = execution(RolloutState.of(notes.events), nodes, notes)
    resuming = asyncio.create_task(again.run(RolloutResumed()))
    await asyncio.sleep(100)
    assert (again.state.waits, list(nodes.ran)) == (True, [NodeRun(1, node(1))])
    if continues:
        notes.words.append((RolloutCommand.CONTINUE, "bob"))
        assert (await resuming).ending is RolloutEnding.DONE
    else:
        reason = "no decision within 1h: 1 node failed; none may fail"
        assert (await resuming).reason == reason
        assert 3600 < asyncio.get_running_loop().time() < 3620


async def test_requested_pauses_happen() -> None:
    """After the canaries of each group that has others, and before each group but the first."""

    notes, nodes = Notes(), SimulatedNodes()
    first = began([1, 2, 3], [4], [5, 6], canary=1, pause=tuple(PauseAfter))
    rollout = new(first, nodes, notes)
    doing = asyncio.create_task(rollout.run())
    ran = []
    while not doing.done():
        await asyncio.sleep(50)
        if rollout.state.waits:
            ran.append(len(nodes.ran))
            notes.words.append((RolloutCommand.CONTINUE, "bob"))
    assert ran == [1, 3, 4, 5]
    assert [one.reason for one in notes.events if isinstance(one, RolloutPaused)] == [
        "after the canaries of group 1, as requested",
        "before group 2, as requested",
        "before group 3, as requested",
        "after the canaries of group 3, as requested",
    ]


@pytest.mark.parametrize("fails", [False, True])
async def test_an_operator_pauses_and_continues_and_accepts_no_failure_by_that(fails: bool) -> None:
    """Running nodes finish and no other starts; the failure limit applies when it continues."""

    notes = Notes()
    nodes = SimulatedNodes(bad={node(2)} if fails else set(), seconds={node(2): 100.0})
    rollout, doing = await begun(began([1, 2, 3], [4], window=1), nodes, notes, after=20)
    notes.words += [(RolloutCommand.PAUSE, "bob"), (RolloutCommand.PAUSE, "carol")]
    await asyncio.sleep(600)
    assert notes.refused == ["", "is already paused: paused by bob on pc"]
    assert rollout.state.waits
    assert words(rollout.state)[1] == ("failed" if fails else "succeeded")
    assert list(nodes.ran) == [NodeRun(1, node(1)), NodeRun(1, node(2))]
    assert len(nodes.held) == 4
    (paused,) = [one for one in notes.events if isinstance(one, RolloutPaused)]
    assert (paused.requested_by, paused.since is not None) == ("bob on pc", True)
    notes.words.append((RolloutCommand.CONTINUE, "bob"))
    over = await doing
    assert over.ending is (RolloutEnding.FAILED if fails else RolloutEnding.DONE)
    assert len(nodes.ran) == (2 if fails else 4)
    decisions = reported(*notes.events).decisions
    assert decisions[0][1] == "paused by bob on pc"


HOUR = 3600.0


@pytest.mark.parametrize(
    ("deaf", "still_held", "hours"),
    [
        pytest.param(set(), {}, {node(1): 2}, id="all replies arrive"),
        pytest.param(
            {1}, {node(1): "did not answer"}, {node(1): 2}, id="the failed node's are lost"
        ),
        pytest.param(
            {2},
            {node(2): "did not answer"},
            {node(1): 2, node(2): 1 / 6},
            id="another node's are lost",
        ),
    ],
)
async def test_failed_nodes_stay_on_hold_and_are_released_later(
    deaf: set[int], still_held: dict[NodeName, str], hours: dict[NodeName, float]
) -> None:
    notes, nodes = Notes(), SimulatedNodes(bad={node(1)})
    nodes.deaf_to_ends = {*map(node, deaf)}
    first = began([1, 2], [3], investigate=2 * HOUR)
    over = await new(first, nodes, notes).run()
    assert (over.held_for_investigation, over.still_held) == ((node(1),), still_held)
    assert nodes.held == {node(1), *still_held}
    assert nodes.kept == {node(1): 2 * HOUR}
    held = reported(*notes.events).held_until()
    ends = {one: (end - parse_time(AT)).total_seconds() / HOUR for one, end in held.items()}
    assert ends == hours

    async def give_back() -> RolloutEnded:
        return await execution(RolloutState.of(notes.events), nodes, notes).give_back()

    nodes.deaf_to_ends, nodes.silent = set(), {node(1)}
    over = await give_back()
    assert (over.held_for_investigation, over.still_held) == (
        (node(1),),
        {node(1): "did not answer"},
    )
    nodes.silent = set()
    over = await give_back()
    assert (over.held_for_investigation, over.still_held, over.ending) == (
        (),
        {},
        RolloutEnding.FAILED,
    )
    assert nodes.held == set()


A, B, C = change("/a"), change("/b"), change("/c")
FIRST = approved(began([1, 2], [3]))


def site(**differing: object) -> SimulatedNodes:
    """Return nodes that would change what is approved; number 2 one thing more if it differs."""
    found = SimulatedNodes(foreseen={node(number): foretold(A) for number in range(1, 6)})
    if differing:
        found.foreseen[node(2)] = foretold(A, B)
    return found


async def waiting() -> tuple[SimulatedNodes, Notes, Execution, asyncio.Task[RolloutEnded]]:
    """Return a rollout that waits for the approval of what node 2 would change."""
    nodes, notes = site(differing=True), Notes()
    rollout, doing = await begun(FIRST, nodes, notes, after=100)
    assert rollout.state.waits
    return nodes, notes, rollout, doing


def test_approved_changes_run_and_each_node_predicts_before_its_run() -> None:
    nodes, notes = site(), Notes()
    nodes.foreseen[node(3)] = foretold()  # by now another person did that
    nodes.producers = {node(1)}
    first = replace(FIRST, needs=(ExportDependency(producers=(node(1),), consumers=(node(3),)),))
    state = run_simulated(carry_out(first, nodes, notes))
    assert words(state) == ["succeeded"] * 3
    assert sorted(nodes.looked) == [NodeRun(4, node(1)), NodeRun(4, node(2)), NodeRun(5, node(3))]
    seen = entry_of(NodeRun(1, node(1)))
    assert nodes.after[NodeRun(5, node(3))] == (seen,), (
        "it predicts with the entries of its producers"
    )
    looked = [one.node_run for one in notes.events if isinstance(one, ChangesPredicted)]
    assert sorted(looked) == sorted(nodes.ran)


async def test_a_difference_waits_for_an_approval_and_no_other_run_starts() -> None:
    nodes, notes, rollout, doing = await waiting()
    state = rollout.state
    ((turn, difference),) = state.differing.items()
    assert (turn, difference.others) == (NodeRun(1, node(2)), (B,))
    assert (state.waits, sorted(nodes.ran)) == (True, [NodeRun(1, node(1))])
    assert isinstance(state.paused, RolloutPaused)
    assert state.paused.reason == ("n02.example.com would make 1 change that was not approved")
    notes.words += [(RolloutCommand.CONTINUE, "bob")]
    notes.approve = lambda: f"{node(2)} 0123456789abcdef"
    await asyncio.sleep(5)
    assert any("differ now: read" in one for one in notes.refused)
    assert any("waits until what n02.example.com would change" in one for one in notes.refused)
    notes.approve = lambda: about(node(2), difference)
    over = await doing
    assert over.ending is RolloutEnding.DONE
    assert words(state) == ["succeeded"] * 3
    assert len(nodes.looked) == 4, "node 2 looks again when its difference is approved"


async def test_changes_that_appear_while_a_node_waits_need_an_approval() -> None:
    """The approval was for the earlier prediction; fewer changes than that pass."""

    nodes, notes, rollout, doing = await waiting()
    state = rollout.state
    (first,) = state.differing.values()
    nodes.foreseen[node(2)] = foretold(A, B, C)
    notes.approve = lambda: about(node(2), first)
    await asyncio.sleep(100)
    ((turn, second),) = state.differing.items()
    assert (turn, second.others) == (NodeRun(1, node(2)), (C,)), "only what is new"
    assert (state.waits, turn in nodes.ran) == (True, False)
    assert turn not in state.approved
    nodes.foreseen[node(2)] = foretold(A, C)
    notes.approve = lambda: about(node(2), second)
    assert (await doing).ending is RolloutEnding.DONE
    assert nodes.ran_with[turn] == foretold(A, C)
    assert len({one.step for one in nodes.looked if one.node == node(2)}) == 3


class Unreachable(SimulatedNodes):
    """Nodes that are unreachable for ten minutes."""

    async def start(self, turn: NodeRun, **asked: Any) -> NodeRunAnswer:
        if asyncio.get_running_loop().time() < 600:
            return NodeRunAnswer(problem="the bus is unreachable")
        return await super().start(turn, **asked)


async def test_an_outage_between_look_and_run_has_the_node_look_again() -> None:
    nodes, notes = Unreachable(foreseen={node(1): foretold(A)}), Notes()
    rollout, doing = await begun(approved(began([1])), nodes, notes, after=500)
    assert NodeRun(1, node(1)) in rollout.state.cleared
    nodes.foreseen[node(1)] = foretold(A, B)
    await asyncio.sleep(500)
    ((turn, difference),) = rollout.state.differing.items()
    assert (rollout.state.waits, nodes.ran, difference.others) == (True, {}, (B,))
    assert rollout.state.looks(turn), "the rollout knows that the node has not run"
    notes.approve = lambda: about(node(1), difference)
    assert (await doing).ending is RolloutEnding.DONE
    assert nodes.ran_with == {turn: foretold(A, B)}


class Slow(SimulatedNodes):
    """Nodes for which each prediction is too old."""

    async def start(self, turn: NodeRun, **asked: Any) -> NodeRunAnswer:
        self.looked_at[asked["looked"], turn.node] = -1000.0
        return await super().start(turn, **asked)


def test_a_node_whose_predictions_are_always_too_old_fails_and_does_not_run() -> None:
    nodes = Slow(foreseen={node(1): foretold(A)})
    state = run_simulated(carry_out(approved(began([1])), nodes, Notes()))
    assert (words(state), nodes.ran, len(nodes.looked)) == (["failed"], {}, LOOKS)


async def test_a_node_that_waits_when_the_rollout_is_stopped_was_not_reached() -> None:
    """A resumed rollout predicts again: by then the node may no longer differ."""

    nodes, notes, rollout, doing = await waiting()
    notes.words += [(RolloutCommand.STOP, "bob")]
    over = await doing
    assert (over.ending, rollout.state.waits) == (RolloutEnding.STOPPED, False)
    assert words(rollout.state) == ["succeeded", "not reached", "not reached"]
    assert nodes.held == set()
    nodes.foreseen[node(2)] = foretold(A)
    again = execution(RolloutState.of(notes.events), nodes, notes)
    assert (await again.run(RolloutResumed())).ending is RolloutEnding.DONE
    assert words(again.state) == ["succeeded"] * 3
    assert nodes.looked.count(NodeRun(8, node(2))) == 1, "a step of the second epoch"


async def test_a_wait_ends_without_a_decision_or_with_two_interruptions() -> None:
    nodes, notes = site(differing=True), Notes()
    first = replace(FIRST, options=replace(FIRST.options, pause_at_most=60.0))
    over = await new(first, nodes, notes).run()
    assert over.reason.startswith("no decision within 1m: n02.example.com would make 1 change")
    rollout = new(FIRST, site(differing=True), Notes())
    doing = asyncio.create_task(rollout.run())
    await asyncio.sleep(0.2)  # while they look
    rollout.interrupt("^C")
    rollout.interrupt("^C")
    assert (await doing).ending is RolloutEnding.STOPPED
    assert words(rollout.state) == ["not reached"] * 3


async def test_a_failed_or_too_large_prediction_is_a_failure_and_no_node_runs() -> None:
    nodes = site()
    nodes.foreseen[node(1)] = replace(foretold(), total=5000)
    nodes.silent_looks.add(node(2))
    state = await carry_out(FIRST, nodes, Notes())
    assert words(state) == ["failed", "unresponsive", "not reached"]
    reasons = [state.failed[node(number)].reason for number in (1, 2)]
    assert reasons[0] == "would change 5000 properties: too many to be approved"
    assert reasons[1].startswith("before its run, with noop: did not report within 1h")
    assert nodes.ran == {}
    assert run_ended(NodeRun(1, node(1)), NodeResult.FAILED, reason=reasons[0]) in [
        *state.ends.values()
    ]
