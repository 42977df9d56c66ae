"""Rollouts that are killed at a write of the journal and resume; and two at the same time."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from localpuppet.base.formats.names import NodeName, RolloutId
from localpuppet.rollout.commands import about
from localpuppet.rollout.deliveries import NodeRunAnswer, Problems
from localpuppet.rollout.events import (
    ChecksEnded,
    NodeResult,
    NodeRun,
    NodeRunEnded,
    NodeRunsStarted,
    RolloutBegan,
    RolloutEnding,
    RolloutResumed,
    RolloutTakenOver,
)
from localpuppet.rollout.rollout_options import Amount, OnFailure, PauseAfter, compare
from localpuppet.rollout.state import RolloutState
from tests.doubles.simulated_loop import run_simulated
from tests.rollout.make import (
    AT,
    RELEASE,
    Notes,
    SimulatedNodes,
    SimulatedProbe,
    approved,
    began,
    begun,
    carry_out,
    change,
    execution,
    foretold,
    killed,
    new,
    node,
    reported,
    words,
)

pytestmark = pytest.mark.simulated
A = change("/a")
CHECK = "http://%{node}/"
ONE = Amount.parse("1", what="")

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
    """Killed at each write of the journal, and again at one of the writes after it resumes."""
    first = FIRSTS[name]
    planned = {NodeRun(step, one) for step, group in enumerate(first.groups, 1) for one in group}
    deaths = 0
    for kill_at in range(1, 100):
        for again_after in (kill_at % 3, 3 + kill_at % 3):
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
                await again.run(RolloutResumed())
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
    done: list[RolloutState | None] = []

    async def whole() -> None:
        done.append(await work)  # type: ignore[misc]

    return None if killed(whole()) else done[0]


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


BOB = RolloutTakenOver(caller="choria=bob", epoch=3, since=datetime(2026, 11, 22, 11, tzinfo=UTC))

RESUMED = {
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
@pytest.mark.parametrize("name", RESUMED)
def test_no_node_runs_twice_even_if_the_checkpoint_lags_behind(name: str, lag: int) -> None:
    """Killed at each write; the controller that resumes does not know the last few events."""
    for kill_at in range(1, 100):
        nodes = nodes_of(name)
        notes = Notes(kill_at=kill_at, written=True)
        nodes.notes = notes
        if not killed(carry_out(RESUMED[name], nodes, notes)):
            assert kill_at > 5
            return
        known = Notes()
        known.events = notes.events[: max(1, len(notes.events) - lag)]
        nodes.notes, nodes.news = known, asyncio.Queue()
        state = RolloutState.of(known.events)
        if not state.resumable:
            continue
        ran = dict(nodes.ran)
        run_simulated(execution(state, nodes, known).run(RolloutResumed(epoch=7)))
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
        assert name != "rollback" or len(started) == 6
    pytest.fail("it never comes to an end")


async def test_a_takeover_is_in_the_journal_and_not_a_failure() -> None:
    """Running nodes are not failures either: the other controller has their results."""

    notes, nodes = Notes(), SimulatedNodes(seconds={node(1): 60.0})
    rollout, running = await begun(RESUMED["groups"], nodes, notes, after=10)
    for _ in range(2):
        rollout.hand_over(BOB)
    running.cancel()
    await asyncio.wait([running])
    assert notes.events.count(BOB) == 1
    report = reported(*notes.events)
    assert (report.word, report.counts()) == (
        "taken over",
        {"running": 1, "waiting": 1, "not started": 2},
    )
    assert report.why == BOB.who
    assert (AT, f"taken over {BOB.who}") in report.decisions
    state = RolloutState.of([*notes.events, RolloutResumed(epoch=4)])
    assert (state.overtaken, state.resumable) == (None, True)


def nodes_of(name: str) -> SimulatedNodes:
    bad = {node(3)} if name == "rollback" else set()
    return SimulatedNodes(bad=bad, back=len(RESUMED[name].groups) + 1)


@pytest.mark.parametrize("handed_over", [True, False])
async def test_an_overtaken_controller_leaves_the_holds_to_the_new_one(handed_over: bool) -> None:
    """Otherwise nodes would run for others until the next controller holds them: up to 20 s."""

    notes, nodes = Notes(), SimulatedNodes(seconds={node(1): 60.0})
    rollout, running = await begun(RESUMED["groups"], nodes, notes, after=10)
    if handed_over:
        rollout.hand_over()
    running.cancel()
    await asyncio.wait([running])
    held = {node(1), node(2), node(3), node(4)}
    assert nodes.held == (held if handed_over else set())


Holders = dict[NodeName, RolloutId]


@dataclass
class SharedNodes(SimulatedNodes):
    """Nodes that another controller may hold: the first one gets a node, as on real nodes."""

    # the rollout that asks here
    rollout: RolloutId = field(default_factory=lambda: RolloutId("20261122T110000Z-0123"))
    # the rollout that holds each node; shared by all controllers
    holders: Holders = field(default_factory=dict)
    pause: float = 1.0  # seconds that a node takes to answer

    async def ready(self, nodes: Collection[NodeName]) -> Problems:
        await asyncio.sleep(self.pause)
        return self._others(nodes)

    async def hold(
        self, nodes: Collection[NodeName], *, epoch: int, seconds: float | None = None
    ) -> Problems:
        problems: dict[NodeName, str] = {}
        for one in nodes:
            await asyncio.sleep(self.pause)
            problems |= self._others([one])
            if one not in problems:
                self.holders[one] = self.rollout
        await super().hold([one for one in nodes if one not in problems], epoch=epoch)
        return problems

    async def release(self, nodes: Collection[NodeName], *, epoch: int) -> Problems:
        for one in nodes:
            if self.holders.get(one) == self.rollout:
                del self.holders[one]
        return await super().release(nodes, epoch=epoch)

    async def start(self, turn: NodeRun, **asked: Any) -> NodeRunAnswer:
        assert self.holders[turn.node] == self.rollout, (
            "a node runs only for the rollout that holds it"
        )
        return await super().start(turn, **asked)

    def _others(self, nodes: Collection[NodeName]) -> dict[NodeName, str]:
        theirs = {one: self.holders.get(one, self.rollout) for one in nodes}
        return {one: f"on hold: {who}" for one, who in theirs.items() if who != self.rollout}


def orchestrator(
    number: int, first: RolloutBegan, holders: Holders
) -> tuple[RolloutBegan, SharedNodes]:
    rollout = RolloutId(f"20261122T110000Z-{number:04}")
    return replace(first, id=rollout), SharedNodes(rollout=rollout, holders=holders)


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("later", [0.0, 0.5, 1.5, 3.2, 20.0])
async def test_a_node_runs_for_only_one_rollout_at_a_time(later: float, *, skip: bool) -> None:
    """Both rollouts need nodes 3 and 4; a rollout that does not get all of its nodes takes none."""

    holders: Holders = {}
    one, first = orchestrator(1, began([1, 2, 3, 4], skip_unready=skip), holders)
    two, second = orchestrator(2, began([4, 3], [5], skip_unready=skip), holders)
    doing = asyncio.create_task(new(one, first, Notes()).run())
    await asyncio.sleep(later)
    over = await new(two, second, Notes()).run()
    endings = [(await doing).ending, over.ending]
    assert holders == {}, "both release their holds"
    shared = {node(3), node(4)}
    ran = [{turn.node for turn in nodes.ran} & shared for nodes in (first, second)]
    if later < 10:
        assert not ran[0] & ran[1], "a node that one holds does not run for the other"
        assert skip or RolloutEnding.NOT_READY in endings
    else:
        assert endings == [RolloutEnding.DONE, RolloutEnding.DONE]
    for ending, nodes in zip(endings, (first, second), strict=True):
        assert bool(nodes.ran) == (ending is RolloutEnding.DONE)
