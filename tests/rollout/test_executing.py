"""Rollouts over simulated nodes in simulated time."""

import asyncio
from typing import Any

import pytest

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.rollout.commands import RolloutCommand
from localpuppet.rollout.deliveries import NodeRunAnswer, Problems
from localpuppet.rollout.events import (
    NodeRun,
    RolloutBegan,
    RolloutEnded,
    RolloutEnding,
)
from localpuppet.rollout.executing import RENEW
from localpuppet.rollout.rollout_options import Amount
from localpuppet.rollout.state import RolloutState
from tests.doubles.simulated_loop import run_simulated
from tests.rollout.simulated import (
    Notes,
    SimulatedNodes,
    SimulatedProbe,
    began,
    carry_out,
    execution,
    new,
    node,
    words,
)

CHECK = "http://%{node}/"
ONE = Amount.parse("1", what="")


def test_a_window_moves_on_with_each_end() -> None:
    """Two at a time, of 5, 20, 5 and 5 seconds: the long one does not hold up the others."""

    async def work() -> None:
        nodes = SimulatedNodes({node(1): 5.0, node(2): 20.0, node(3): 5.0, node(4): 5.0})
        state = await carry_out(began([1, 2, 3, 4], window=2), nodes)
        assert asyncio.get_running_loop().time() <= 21
        assert nodes.at_once() == 2
        assert state.over == RolloutEnded(ending=RolloutEnding.DONE, reason="", still_held={})
        assert words(state) == ["succeeded"] * 4
        assert nodes.held == set()

    run_simulated(work())


def test_nodes_of_a_group_run_together_and_groups_one_after_the_other() -> None:
    async def work() -> None:
        nodes = SimulatedNodes()
        await carry_out(began([1, 2, 3], [2, 4]), nodes)
        first = max(end for turn, (_, end) in nodes.ran.items() if turn.step == 1)
        assert all(begin >= first for turn, (begin, _) in nodes.ran.items() if turn.step == 2)
        assert asyncio.get_running_loop().time() < 2.5
        assert len(nodes.ran) == 5

    run_simulated(work())


def test_an_unresponsive_node_is_a_failure_and_ends_the_rollout() -> None:
    async def work() -> None:
        nodes = SimulatedNodes()
        notes = Notes()
        rollout = new(began([1, 2], [3], timeout=100), nodes, notes)
        doing = asyncio.create_task(rollout.run(resume=False))
        await asyncio.sleep(0.5)
        nodes.silent.add(node(2))
        over = await doing
        assert over.ending is RolloutEnding.FAILED
        assert over.reason == "1 node failed; none may fail"
        assert words(rollout.state) == ["succeeded", "unresponsive", "not reached"]
        assert over.still_held == {node(2): "did not answer"}
        assert rollout.state.failed[node(2)].reason == (
            "did not report within 1m 40s how its run ended: did not answer"
        )

    run_simulated(work())


def test_a_rollout_with_unready_nodes_is_refused_before_any_change() -> None:
    async def work() -> None:
        nodes = SimulatedNodes(silent={node(2)}, unready={node(3): "on hold: work"})
        state = await carry_out(began([1, 2], [3]), nodes)
        assert state.over is not None
        assert state.over.ending is RolloutEnding.NOT_READY
        assert state.over.reason == (
            "n02.example.com: did not answer; n03.example.com: on hold: work"
        )
        assert (nodes.ran, nodes.holds) == ({}, 0)

    run_simulated(work())


def test_a_node_that_reports_its_result_is_asked_once() -> None:
    """The controller asks a failed node for the reason, and a producer for its entry."""

    async def work() -> None:
        nodes = SimulatedNodes(bad={node(2)}, producers={node(3)})
        state = await carry_out(began([1, 2, 3], [1], max_failures=ONE), nodes)
        assert nodes.requests == {
            NodeRun(1, node(1)): 1,
            NodeRun(1, node(2)): 2,
            NodeRun(1, node(3)): 2,
            NodeRun(2, node(1)): 1,
        }
        assert state.failed.keys() == {node(2)}
        assert state.entries.keys() == {node(3)}

    run_simulated(work())


def test_an_unready_node_is_left_out_unless_another_needs_it() -> None:
    async def work(*, needed: bool) -> RolloutState:
        nodes = SimulatedNodes(unready={node(1): "on hold: work"})
        first = began([1, 2], [3], skip_unready=True)
        consumers: dict[NodeName, tuple[NodeName, ...]] = {node(1): (node(3),)} if needed else {}
        first = RolloutBegan(
            id=first.id,
            caller=first.caller,
            groups=first.groups,
            options=first.options,
            title="",
            consumers=consumers,
        )
        return await carry_out(first, nodes)

    assert words(run_simulated(work(needed=False))) == ["skipped", "succeeded", "succeeded"]
    state = run_simulated(work(needed=True))
    assert state.over is not None
    assert state.over.reason.endswith(
        "not left out, because n03.example.com consumes what n01.example.com produces"
    )


def test_a_rollout_in_which_no_node_is_ready_is_not_done() -> None:
    unready = {node(number): "on hold: work" for number in (1, 2)}
    nodes = SimulatedNodes(unready=unready)
    state = run_simulated(carry_out(began([1], [2], skip_unready=True), nodes))
    assert state.over is not None
    assert state.over.ending is RolloutEnding.NOT_READY
    assert state.over.reason == "n01.example.com, n02.example.com: on hold: work"
    assert words(state) == ["not reached"] * 2


@pytest.mark.parametrize("times", [1, 2])
def test_a_stop_lets_runs_end_and_a_second_one_does_not(times: int) -> None:
    async def work() -> None:
        nodes = SimulatedNodes({node(1): 50.0})
        rollout = new(began([1], [2]), nodes, Notes())
        doing = asyncio.create_task(rollout.run(resume=False))
        await asyncio.sleep(10)
        for _ in range(times):
            rollout.interrupt("interrupted")
        over = await doing
        assert over == RolloutEnded(
            ending=RolloutEnding.STOPPED, reason="interrupted", still_held={}
        )
        assert asyncio.get_running_loop().time() == (50 if times == 1 else 10)
        assert words(rollout.state) == [
            "succeeded" if times == 1 else "unresponsive",
            "not reached",
        ]
        assert nodes.held == set()

    run_simulated(work())


def test_a_stop_before_the_first_run_starts_none() -> None:
    async def work() -> None:
        nodes = SimulatedNodes()
        rollout = new(began([1]), nodes, Notes())
        rollout.stop("interrupted")
        assert (await rollout.run(resume=False)).ending is RolloutEnding.STOPPED
        assert nodes.ran == {}

    run_simulated(work())


def test_another_process_can_ask_for_a_stop() -> None:
    async def work() -> None:
        notes = Notes()
        rollout = new(began([1], [2]), SimulatedNodes({node(1): 50.0}), notes)
        doing = asyncio.create_task(rollout.run(resume=False))
        await asyncio.sleep(10)
        notes.words.append((RolloutCommand.STOP, "bob"))
        assert (await doing).reason == "stopped by bob on pc"

    run_simulated(work())


def test_an_interruption_after_a_stop_command_counts_as_the_first() -> None:
    async def work() -> None:
        notes = Notes()
        rollout = new(began([1], [2]), SimulatedNodes({node(1): 50.0}), notes)
        doing = asyncio.create_task(rollout.run(resume=False))
        await asyncio.sleep(10)
        notes.words.append((RolloutCommand.STOP, "bob"))
        await asyncio.sleep(10)
        rollout.interrupt("stopped by SIGINT")
        assert (await doing).reason == "stopped by bob on pc"
        assert words(rollout.state) == ["succeeded", "not reached"]

    run_simulated(work())


def test_a_stopped_rollout_can_be_resumed() -> None:
    async def work() -> None:
        nodes, notes = SimulatedNodes(), Notes()
        first = began([1], [2], [3])
        rollout = new(first, nodes, notes)
        rollout.stop("interrupted")
        await rollout.run(resume=False)
        again = execution(RolloutState.of(notes.events), nodes, notes)
        assert again.state.resumable
        over = await again.run(resume=True)
        assert (over.ending, words(again.state)) == (RolloutEnding.DONE, ["succeeded"] * 3)
        assert not again.state.resumable

    run_simulated(work())


def test_holds_are_renewed() -> None:
    async def work() -> None:
        nodes = SimulatedNodes({node(1): 5 * RENEW - 1})
        await carry_out(began([1]), nodes)
        assert nodes.holds == 5

    run_simulated(work())


def test_a_window_waits_for_checks_and_a_check_may_take_some_tries() -> None:
    """The first node's service is up 7 s after the beginning: its run ends at 1 s."""

    async def work() -> None:
        probe = SimulatedProbe(up={"http://n01.example.com/": 7.0})
        nodes = SimulatedNodes()
        first = began([1, 2], window=1, checks=(CHECK,))
        state = await carry_out(first, nodes, probe=probe)
        assert words(state) == ["succeeded", "succeeded"]
        assert [check for check, _ in probe.tried[:4]] == ["http://n01.example.com/"] * 3 + [
            "http://n02.example.com/"
        ]
        assert nodes.ran[NodeRun(1, node(2))][0] >= 7.5

    run_simulated(work())


def test_a_check_that_never_passes_ends_the_rollout_and_releases_the_nodes() -> None:
    async def work() -> None:
        probe = SimulatedProbe(bad={"http://n01.example.com/"})
        nodes = SimulatedNodes()
        state = await carry_out(began([1, 2], [3], checks=(CHECK,)), nodes, probe=probe)
        assert words(state) == ["failed", "succeeded", "not reached"]
        assert state.failed[node(1)].reason == (
            "check http://n01.example.com/: answered 503, 5 times"
        )
        assert state.over is not None
        assert state.over.ending is RolloutEnding.FAILED
        assert nodes.held == set()

    run_simulated(work())


def test_a_second_stop_does_not_wait_for_checks_either() -> None:
    async def work() -> None:
        probe = SimulatedProbe(bad={"http://n01.example.com/"})
        nodes = SimulatedNodes()
        rollout = new(began([1], [2], checks=(CHECK,)), nodes, Notes(), probe)
        doing = asyncio.create_task(rollout.run(resume=False))
        await asyncio.sleep(2)
        rollout.interrupt("interrupted")
        rollout.interrupt("interrupted")
        await doing
        assert asyncio.get_running_loop().time() == 2
        assert rollout.state.failed[node(1)].reason == "its checks were not awaited"

    run_simulated(work())


class Deaf(SimulatedNodes):
    """Nodes whose reports do not arrive, on a bus that is unreachable at times."""

    async def ready(self, nodes: object) -> Problems:
        raise UnavailableError("away")


def test_an_unreachable_bus_before_any_change_is_an_error() -> None:
    async def work() -> None:
        nodes, notes = Deaf(), Notes()
        with pytest.raises(UnavailableError):
            await carry_out(began([1]), nodes, notes)
        assert nodes.holds == 0
        assert notes.events[-1] == RolloutEnded(
            ending=RolloutEnding.NOT_READY, reason="away", still_held={}
        )

    run_simulated(work())


class Forgetful(SimulatedNodes):
    """Nodes that answer only every other request, and publish no reports."""

    asked = 0

    async def start(self, turn: NodeRun, **asked: Any) -> NodeRunAnswer:
        self.asked += 1
        if self.asked % 2:
            return NodeRunAnswer(problem="away")
        found = await super().start(turn, **asked)
        self.news = asyncio.Queue()
        return found


def test_a_lost_reply_costs_only_time() -> None:
    async def work() -> None:
        nodes = Forgetful()
        state = await carry_out(began([1], [2]), nodes)
        assert words(state) == ["succeeded", "succeeded"]
        assert len(nodes.ran) == 2

    run_simulated(work())
