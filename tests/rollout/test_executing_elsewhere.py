"""Rollouts that resume elsewhere after a kill, from a checkpoint that lags behind the journal."""

import asyncio
from datetime import UTC, datetime

import pytest

from localpuppet.base.formats.names import ReleasePath
from localpuppet.rollout.events import (
    NodeRunsStarted,
    RolloutBegan,
    RolloutEnding,
    RolloutResumed,
    RolloutTakenOver,
)
from localpuppet.rollout.rollout_options import Amount, Delivery, OnFailure
from localpuppet.rollout.rollout_report import RolloutReport
from localpuppet.rollout.state import RolloutState
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

AT = "2026-11-22T11:00:00.000000Z"
BOB = RolloutTakenOver(caller="choria=bob", epoch=3, since=datetime(2026, 11, 22, 11, tzinfo=UTC))
RELEASE = Delivery(release=ReleasePath("shop/tags/r7"))
FIRSTS = {
    "groups": began([1, 2], [2, 3], [4]),
    "batches": began([1, 2, 3, 4], batch=Amount.parse("2", what=""), canary=1),
    "release": began([1, 2], [3], delivery=RELEASE),
    "rollback": began([1, 2], [3], [4], delivery=RELEASE, on_failure=OnFailure.ROLLBACK),
}
ENDS = {
    "groups": ["succeeded"] * 4,
    "batches": ["succeeded"] * 4,
    "release": ["succeeded"] * 3,
    "rollback": ["rolled back", "rolled back", "rolled back", "not reached"],
}


@pytest.mark.parametrize("lag", range(4))
@pytest.mark.parametrize("name", FIRSTS)
def test_no_node_runs_twice_even_if_the_checkpoint_lags_behind(name: str, lag: int) -> None:
    """Killed at each write; the controller that resumes does not know the last few events."""
    for kill_at in range(1, 100):
        nodes = nodes_of(name)
        notes = Notes(kill_at=kill_at, written=True)
        nodes.notes = notes
        if not killed(carry_out(FIRSTS[name], nodes, notes)):
            assert kill_at > 5
            return
        known = Notes()
        known.events = notes.events[: max(1, len(notes.events) - lag)]
        nodes.notes, nodes.news = known, asyncio.Queue()
        state = RolloutState.of(known.events)
        if not state.resumable:
            continue
        ran = dict(nodes.ran)
        run_simulated(execution(state, nodes, known).run(resume=True, by=RolloutResumed(epoch=7)))
        assert (words(state), state.epoch) == (ENDS[name], 7)
        assert nodes.ran.items() >= ran.items(), (
            "the controller requests the result of a finished run, and does not repeat the run"
        )
        assert state.over is not None
        ending = RolloutEnding.FAILED if name == "rollback" else RolloutEnding.DONE
        assert (state.over.ending, nodes.held) == (ending, set())
        started = [
            turn
            for one in known.events
            if isinstance(one, NodeRunsStarted)
            for turn in one.node_runs
        ]
        assert len(started) == len(set(started))
    pytest.fail("it never comes to an end")


def test_a_takeover_is_in_the_journal_and_not_a_failure() -> None:
    """Running nodes are not failures either: the other controller has their results."""

    async def work() -> None:
        notes, nodes = Notes(), SimulatedNodes(seconds={node(1): 60.0})
        rollout = new(FIRSTS["groups"], nodes, notes)
        running = asyncio.create_task(rollout.run(resume=False))
        await asyncio.sleep(10)
        for _ in range(2):
            rollout.hand_over(BOB)
        running.cancel()
        await asyncio.wait([running])
        assert notes.events.count(BOB) == 1
        report = RolloutReport.of([(AT, one) for one in notes.events], taken=False)
        assert (report.word, report.counts()) == (
            "taken over",
            {"running": 1, "waiting": 1, "not started": 2},
        )
        assert report.why == BOB.who
        assert (AT, f"taken over {BOB.who}") in report.decisions
        state = RolloutState.of([*notes.events, RolloutResumed(epoch=4)])
        assert (state.overtaken, state.resumable) == (None, True)

    run_simulated(work())


def nodes_of(name: str) -> SimulatedNodes:
    rollback = name == "rollback"
    first: RolloutBegan = FIRSTS[name]
    return SimulatedNodes(bad={node(3)} if rollback else set(), back=len(first.groups) + 1)


@pytest.mark.parametrize("handed_over", [True, False])
def test_an_overtaken_controller_leaves_the_holds_to_the_new_one(handed_over: bool) -> None:
    """Otherwise nodes would run for others until the next controller holds them: up to 20 s."""

    async def work() -> None:
        notes, nodes = Notes(), SimulatedNodes(seconds={node(1): 60.0})
        rollout = new(FIRSTS["groups"], nodes, notes)
        running = asyncio.create_task(rollout.run(resume=False))
        await asyncio.sleep(10)
        if handed_over:
            rollout.hand_over()
        running.cancel()
        await asyncio.wait([running])
        held = {node(1), node(2), node(3), node(4)}
        assert nodes.held == (held if handed_over else set())

    run_simulated(work())
