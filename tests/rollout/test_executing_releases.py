"""Rollouts of a release: staged on all nodes before the first change, rolled back on request."""

import asyncio

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.converter import from_record, to_record
from localpuppet.base.formats.names import ReleasePath
from localpuppet.rollout.deliveries import NodeRunReport
from localpuppet.rollout.events import (
    NodeRun,
    NodeRunsStarted,
    RolloutEnding,
    StagingEnded,
)
from localpuppet.rollout.executing import RENEW
from localpuppet.rollout.rollout_options import Delivery, OnFailure, RolloutOptions
from localpuppet.rollout.rollout_report import RolloutReport
from localpuppet.rollout.state import ProgressState, ProgressStates, RolloutState
from tests.doubles.simulated_loop import run_simulated
from tests.rollout.simulated import (
    Notes,
    SimulatedNodes,
    began,
    carry_out,
    execution,
    killed,
    new,
    node,
    words,
)

RELEASE = Delivery(release=ReleasePath("shop/tags/r7"))
BACK = {"delivery": RELEASE, "on_failure": OnFailure.ROLLBACK}


def test_all_nodes_stage_a_release_before_the_first_change_and_stay_on_hold() -> None:
    async def work() -> None:
        nodes, notes = SimulatedNodes(staging=1000.0), Notes()
        state = await carry_out(began([1, 2], [3], delivery=RELEASE), nodes, notes)
        assert nodes.staged == [({node(1), node(2), node(3)}, 1)]
        assert nodes.holds > 1000 / RENEW
        assert words(state) == ["succeeded"] * 3
        serials = {node(number): 7 + number for number in (1, 2, 3)}
        assert (state.serials, StagingEnded(serials=serials) in notes.events) == (serials, True)

    run_simulated(work())


@pytest.mark.parametrize("skip", [False, True])
def test_a_node_that_cannot_take_it_stops_it_before_anything_changed(*, skip: bool) -> None:
    async def work() -> None:
        nodes = SimulatedNodes(unstaged={node(2): "no class shop"})
        state = await carry_out(began([1, 2], delivery=RELEASE, skip_unready=skip), nodes)
        assert nodes.held == set()
        assert state.over is not None
        if skip:
            assert words(state) == ["succeeded", "skipped"]
            return
        assert (state.over.ending, nodes.ran) == (RolloutEnding.NOT_READY, {})
        assert state.over.reason == "n02.example.com: no class shop"

    run_simulated(work())


def test_a_stop_while_it_is_brought_ends_it_before_anything_changed() -> None:
    async def work() -> None:
        nodes = SimulatedNodes(staging=10_000.0)
        rollout = new(began([1], delivery=RELEASE), nodes, Notes())
        doing = asyncio.create_task(rollout.run(resume=False))
        await asyncio.sleep(5)
        rollout.interrupt("stopped by SIGINT")
        over = await doing
        assert (over.ending, nodes.ran, nodes.held) == (RolloutEnding.STOPPED, {}, set())
        assert asyncio.get_running_loop().time() < 10

    run_simulated(work())


def test_a_failure_rolls_the_release_back_from_the_last_group() -> None:
    """Nodes that the rollout did not reach have nothing to roll back."""

    async def work() -> None:
        nodes = SimulatedNodes(bad={node(3)}, back=4)
        state = await carry_out(began([1, 2], [3], [4], **BACK), nodes)
        assert words(state) == ["rolled back", "rolled back", "rolled back", "not reached"]
        assert state.over is not None
        assert state.over.ending is RolloutEnding.FAILED
        first, *others = [turn.node for turn in nodes.ran if turn.step == 4]
        assert (first, sorted(others)) == (node(3), [node(1), node(2)])
        assert nodes.ran[NodeRun(4, node(1))][0] >= nodes.ran[NodeRun(4, node(3))][1]
        assert nodes.held == set()

    run_simulated(work())


def test_a_node_that_dies_in_a_rollback_is_not_running_until_it_answers_again() -> None:
    async def work() -> None:
        nodes = SimulatedNodes(bad={node(2)}, back=2)
        rollout = new(began([1, 2], **BACK), nodes, Notes())
        doing = asyncio.create_task(rollout.run(resume=False))
        turn = NodeRun(2, node(1))
        while NodeRun(1, node(1)) not in nodes.ran:
            await asyncio.sleep(0.1)
        nodes.seconds[node(1)] = 100.0
        while turn not in nodes.ran:
            await asyncio.sleep(0.1)
        nodes.silent.add(node(1))
        nodes.news.put_nowait(NodeRunReport(node_run=turn))  # its presence is gone
        await asyncio.sleep(10)
        assert ProgressStates(rollout.state).nodes[node(1)] is ProgressState.WAITING
        nodes.silent.clear()
        await asyncio.sleep(10)
        assert ProgressStates(rollout.state).nodes[node(1)] is ProgressState.RUNNING
        await doing
        assert words(rollout.state) == ["rolled back", "rolled back"]

    run_simulated(work())


def test_a_failed_rollback_does_not_stop_the_others() -> None:
    async def work() -> None:
        nodes = SimulatedNodes(bad={node(2)}, stuck={node(2)}, back=2)
        notes = Notes()
        state = await carry_out(began([1, 2, 3], window=2, **BACK), nodes, notes)
        assert words(state) == ["rolled back", "rollback failed", "not reached"]
        report = RolloutReport.of(
            [("2026-11-22T11:00:00Z", event) for event in notes.events], taken=False
        )
        assert not report.succeeded
        assert [run["node"] for run in report.to_dict()["rollback_runs"]] == [node(1), node(2)]

    run_simulated(work())


def test_an_unresponsive_node_delays_no_other_rollback() -> None:
    async def work() -> None:
        nodes = SimulatedNodes(bad={node(2)}, untaken={node(2)}, back=3)
        rollout = new(began([1], [2, 3], timeout=50, **BACK), nodes, Notes())
        doing = asyncio.create_task(rollout.run(resume=False))
        await asyncio.sleep(1.5)
        nodes.silent.add(node(3))
        await doing
        assert words(rollout.state) == ["rolled back", "failed", "rollback failed"]
        assert nodes.ran[NodeRun(3, node(1))][1] < 55
        assert rollout.state.over is not None
        assert set(rollout.state.over.still_held) == {node(3)}

    run_simulated(work())


def test_a_stop_by_a_person_rolls_nothing_back() -> None:
    async def work() -> None:
        nodes = SimulatedNodes(back=3)
        rollout = new(began([1], [2], **BACK), nodes, Notes())
        doing = asyncio.create_task(rollout.run(resume=False))
        await asyncio.sleep(1.5)
        rollout.interrupt("stopped by SIGINT")
        await doing
        assert words(rollout.state) == ["succeeded", "not reached"]

    run_simulated(work())


@pytest.mark.parametrize("written", [False, True])
def test_a_kill_at_every_write_of_a_rollback(*, written: bool) -> None:
    """The controller that resumes completes the rollback, and rolls back no node twice."""
    first = began([1, 2], [3], [4], **BACK)
    for kill_at in range(1, 100):
        nodes, notes = (
            SimulatedNodes(bad={node(3)}, back=4),
            Notes(kill_at=kill_at, written=written),
        )
        nodes.notes = notes
        if not killed(carry_out(first, nodes, notes)):
            assert kill_at > 8
            return
        notes.killed, notes.kill_at, nodes.news = False, None, asyncio.Queue()
        state = RolloutState.of(notes.events)
        if state.resumable:
            work = execution(state, nodes, notes)
            run_simulated(work.run(resume=True))
        assert words(state) == ["rolled back", "rolled back", "rolled back", "not reached"]
        assert state.over is not None
        assert state.over.ending is RolloutEnding.FAILED
        started = [
            turn
            for one in notes.events
            if isinstance(one, NodeRunsStarted)
            for turn in one.node_runs
        ]
        assert len(started) == len(set(started)) == 6
        assert nodes.held == set()
    pytest.fail("it never comes to an end")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delivery": RELEASE, "noop": True}, "--release excludes --noop and --tags"),
        ({"delivery": RELEASE, "tags": ("a",)}, "--release excludes --noop and --tags"),
        ({"on_failure": OnFailure.ROLLBACK}, "--on-failure rollback requires --release"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        RolloutOptions(**options)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="is not a tag"):
        Delivery(release=ReleasePath("shop/trunk"))


def test_a_journal_keeps_the_whole_delivery() -> None:
    whole = Delivery(
        release=ReleasePath("shop/tags/r7"),
        layers=("canary",),
        classes={"shop": {"port": 81}},
        allow_older=True,
    )
    options = RolloutOptions(delivery=whole, on_failure=OnFailure.ROLLBACK)
    assert from_record(RolloutOptions, to_record(options)) == options
    assert whole.rights == ("deploy:shop/tags/r7", "values", "older")
