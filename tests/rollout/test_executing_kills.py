"""Rollouts that are killed at a write of the journal, and resume."""

import asyncio
from functools import partial

import pytest

from localpuppet.base.formats.names import ReleasePath
from localpuppet.rollout.commands import about
from localpuppet.rollout.events import (
    ChecksEnded,
    NodeResult,
    NodeRun,
    NodeRunEnded,
    NodeRunsStarted,
    RolloutEnding,
    RolloutResumed,
)
from localpuppet.rollout.rollout_options import Amount, Delivery, OnFailure, PauseAfter, compare
from localpuppet.rollout.state import RolloutState
from tests.doubles.simulated_loop import run_simulated
from tests.rollout.foretold import approved, change, foretold
from tests.rollout.simulated import (
    Killed,
    Notes,
    SimulatedNodes,
    SimulatedProbe,
    began,
    carry_out,
    execution,
    node,
)

A = change("/a")
CHECK = "http://%{node}/"
ONE = Amount.parse("1", what="")
RELEASE = Delivery(release=ReleasePath("shop/tags/r7"))
FIRSTS = {
    "groups": began([1, 2], [2, 3], [4]),
    "window": began([1, 2, 3, 4], window=2),
    "batches": began([1, 2, 3, 4, 5], batch=Amount.parse("2", what=""), canary=1),
    "one fails": began([1, 2], [3], max_failures=ONE),
    "skipped": began([1, 2], [3], skip_unready=True),
    "pauses": began([1, 2], [3], [4], on_failure=OnFailure.PAUSE, pause=tuple(PauseAfter)),
    "release": began([1, 2], [2, 3], delivery=RELEASE),
    "approved": approved(began([1, 2], [2, 3])),
    "checks": began([1, 2, 3], [4], window=2, checks=(CHECK,), max_failures=ONE),
}


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("name", FIRSTS)
def test_a_kill_at_every_write(name: str, *, written: bool) -> None:
    """Killed at each write of the journal, and again at each write after it resumes."""
    first = FIRSTS[name]
    planned = {NodeRun(step, one) for step, group in enumerate(first.groups, 1) for one in group}
    deaths = 0
    for kill_at in range(1, 100):
        for again_after in range(6):
            nodes = SimulatedNodes(bad={node(2)} if name in ("one fails", "pauses") else set())
            nodes.unready = {node(1): "on hold"} if name == "skipped" else {}
            notes = Notes(kill_at=kill_at, written=written)
            notes.always_continue = name != "approved"
            differing = {node(2): foretold(A, change("/more"))} if name == "approved" else {}
            nodes.foreseen = {node(one): foretold(A) for one in range(1, 4)} | differing
            notes.approve = partial(about, node(2), compare(foretold(A), nodes.foreseen[node(2)]))
            probe = SimulatedProbe(bad={"http://n03.example.com/"}, notes=notes)

            async def work(
                notes: Notes = notes, nodes: SimulatedNodes = nodes, probe: SimulatedProbe = probe
            ) -> RolloutState | None:
                nodes.notes = notes
                return await carry_out(first, nodes, notes, probe)

            async def resumed(
                notes: Notes = notes, nodes: SimulatedNodes = nodes, probe: SimulatedProbe = probe
            ) -> RolloutState | None:
                nodes.news = asyncio.Queue()
                notes.killed = False
                state = RolloutState.of(notes.events)
                if not state.resumable:
                    return state
                again = execution(state, nodes, notes, probe)
                await again.run(resume=True)
                return again.state

            if dies(work()) is not None:
                assert deaths > 5
                return
            deaths += 1
            notes.kill_at = notes.writes + again_after
            state = dies(resumed())
            if state is None:
                notes.kill_at = None
                state = dies(resumed())
            assert state is not None
            judge(state, notes, nodes, planned)


def dies(work: "asyncio.Future[RolloutState | None] | object") -> RolloutState | None:
    """Return the result of work; `None` if it was killed."""
    try:
        return run_simulated(work)  # type: ignore[arg-type]
    except Killed:
        return None
    except BaseExceptionGroup as group:
        assert group.subgroup(Killed) is not None
        return None


def judge(state: RolloutState, notes: Notes, nodes: SimulatedNodes, planned: set[NodeRun]) -> None:
    """Check that no node runs twice in a step, none is left out, none stays held."""
    started = [
        turn for one in notes.events if isinstance(one, NodeRunsStarted) for turn in one.node_runs
    ]
    assert len(started) == len(set(started))
    ends = [one.node_run for one in notes.events if isinstance(one, NodeRunEnded)]
    assert sorted(ends) == sorted(started)
    checked = [one.node_run for one in notes.events if isinstance(one, ChecksEnded)]
    assert len(checked) == len(set(checked)), "a checked run is not checked again"
    assert sorted(checked) == sorted(turn for turn in started if state.checks(turn))
    assert state.unchecked == []
    assert state.over is not None
    assert state.over.ending is RolloutEnding.DONE
    left_out = {turn for turn in planned if turn.node in {*state.skipped, *state.failed}}
    assert planned - left_out <= set(nodes.ran) <= planned
    assert nodes.held == set()
    assert state.epoch == 1 + sum(isinstance(one, RolloutResumed) for one in notes.events)
    assert all(fate is not NodeResult.NOT_REACHED for fate in state.results().values())
