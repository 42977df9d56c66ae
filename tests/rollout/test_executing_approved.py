"""Rollouts with approved changes: each node predicts first, and waits if it differs."""

import asyncio
from dataclasses import replace
from typing import Any

from localpuppet.rollout.commands import RolloutCommand, about
from localpuppet.rollout.deliveries import NodeRunAnswer
from localpuppet.rollout.events import (
    ChangesPredicted,
    ExportDependency,
    NodeResult,
    NodeRun,
    NodeRunEnded,
    RolloutEnded,
    RolloutEnding,
    RolloutPaused,
)
from localpuppet.rollout.executing import LOOKS, Execution
from localpuppet.rollout.state import RolloutState
from tests.doubles.simulated_loop import run_simulated
from tests.rollout.foretold import approved, change, foretold
from tests.rollout.simulated import (
    Notes,
    SimulatedNodes,
    began,
    carry_out,
    entry_of,
    execution,
    new,
    node,
    words,
)

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
    rollout = new(FIRST, nodes, notes)
    doing = asyncio.create_task(rollout.run(resume=False))
    await asyncio.sleep(100)
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


def test_a_difference_waits_for_an_approval_and_no_other_run_starts() -> None:
    async def work() -> None:
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

    run_simulated(work())


def test_changes_that_appear_while_a_node_waits_need_an_approval() -> None:
    """The approval was for the earlier prediction; fewer changes than that pass."""

    async def work() -> None:
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

    run_simulated(work())


class Unreachable(SimulatedNodes):
    """Nodes that are unreachable for ten minutes."""

    async def start(self, turn: NodeRun, **asked: Any) -> NodeRunAnswer:
        if asyncio.get_running_loop().time() < 600:
            return NodeRunAnswer(problem="the bus is unreachable")
        return await super().start(turn, **asked)


def test_an_outage_between_look_and_run_has_the_node_look_again() -> None:
    async def work() -> None:
        nodes, notes = Unreachable(foreseen={node(1): foretold(A)}), Notes()
        rollout = new(approved(began([1])), nodes, notes)
        doing = asyncio.create_task(rollout.run(resume=False))
        await asyncio.sleep(500)
        assert NodeRun(1, node(1)) in rollout.state.cleared
        nodes.foreseen[node(1)] = foretold(A, B)
        await asyncio.sleep(500)
        ((turn, difference),) = rollout.state.differing.items()
        assert (rollout.state.waits, nodes.ran, difference.others) == (True, {}, (B,))
        assert rollout.state.looks(turn), "the rollout knows that the node has not run"
        notes.approve = lambda: about(node(1), difference)
        assert (await doing).ending is RolloutEnding.DONE
        assert nodes.ran_with == {turn: foretold(A, B)}

    run_simulated(work())


class Slow(SimulatedNodes):
    """Nodes for which each prediction is too old."""

    async def start(self, turn: NodeRun, **asked: Any) -> NodeRunAnswer:
        self.looked_at[asked["looked"], turn.node] = -1000.0
        return await super().start(turn, **asked)


def test_a_node_whose_predictions_are_always_too_old_fails_and_does_not_run() -> None:
    nodes = Slow(foreseen={node(1): foretold(A)})
    state = run_simulated(carry_out(approved(began([1])), nodes, Notes()))
    assert (words(state), nodes.ran, len(nodes.looked)) == (["failed"], {}, LOOKS)


def test_a_node_that_waits_when_the_rollout_is_stopped_was_not_reached() -> None:
    """A resumed rollout predicts again: by then the node may no longer differ."""

    async def work() -> None:
        nodes, notes, rollout, doing = await waiting()
        notes.words += [(RolloutCommand.STOP, "bob")]
        over = await doing
        assert (over.ending, rollout.state.waits) == (RolloutEnding.STOPPED, False)
        assert words(rollout.state) == ["succeeded", "not reached", "not reached"]
        assert nodes.held == set()
        nodes.foreseen[node(2)] = foretold(A)
        again = execution(RolloutState.of(notes.events), nodes, notes)
        assert (await again.run(resume=True)).ending is RolloutEnding.DONE
        assert words(again.state) == ["succeeded"] * 3
        assert nodes.looked.count(NodeRun(8, node(2))) == 1, "a step of the second epoch"

    run_simulated(work())


def test_a_wait_ends_without_a_decision_or_with_two_interruptions() -> None:
    async def work() -> None:
        nodes, notes = site(differing=True), Notes()
        first = replace(FIRST, options=replace(FIRST.options, pause_at_most=60.0))
        over = await new(first, nodes, notes).run(resume=False)
        assert over.reason.startswith("no decision within 1m: n02.example.com would make 1 change")
        rollout = new(FIRST, site(differing=True), Notes())
        doing = asyncio.create_task(rollout.run(resume=False))
        await asyncio.sleep(0.2)  # while they look
        rollout.interrupt("^C")
        rollout.interrupt("^C")
        assert (await doing).ending is RolloutEnding.STOPPED
        assert words(rollout.state) == ["not reached"] * 3

    run_simulated(work())


def test_a_failed_or_too_large_prediction_is_a_failure_and_no_node_runs() -> None:
    async def work() -> None:
        nodes = site()
        nodes.foreseen[node(1)] = replace(foretold(), total=5000)
        nodes.silent_looks.add(node(2))
        state = await carry_out(FIRST, nodes, Notes())
        assert words(state) == ["failed", "unresponsive", "not reached"]
        reasons = [state.failed[node(number)].reason for number in (1, 2)]
        assert reasons[0] == "would change 5000 properties: too many to be approved"
        assert reasons[1].startswith("before its run, with noop: did not report within 1h")
        assert nodes.ran == {}
        assert NodeRunEnded(
            node_run=NodeRun(1, node(1)), result=NodeResult.FAILED, reason=reasons[0]
        ) in [*state.ends.values()]

    run_simulated(work())
