"""Rollouts over simulated nodes in simulated time."""

import asyncio

import pytest

from localpuppet.errors import UnavailableError
from localpuppet.formats.names import NodeName
from localpuppet.orchestrator.rollout.amount import Amount
from localpuppet.orchestrator.rollout.events import (
    Began,
    Checked,
    Ended,
    Ending,
    Fate,
    Over,
    Resumed,
    Started,
    Turn,
)
from localpuppet.orchestrator.rollout.executing import RENEW
from localpuppet.orchestrator.rollout.nodes import Asked, Problems
from localpuppet.orchestrator.rollout.state import State
from tests.doubles.simulated_loop import run_simulated
from tests.orchestrator.rollout.simulated import (
    Killed,
    Notes,
    SimulatedNodes,
    SimulatedProbe,
    began,
    carry_out,
    execution,
    new,
    node,
)

CHECK = "http://%{node}/"
ONE = Amount.parse("1", what="")


def words(state: State) -> list[str]:
    return [str(fate) for fate in state.fates().values()]


def test_a_window_moves_on_with_each_end() -> None:
    """Two at a time, of 5, 20, 5 and 5 seconds: the long one does not hold up the others."""

    async def work() -> None:
        nodes = SimulatedNodes({node(1): 5.0, node(2): 20.0, node(3): 5.0, node(4): 5.0})
        state = await carry_out(began([1, 2, 3, 4], window=2), nodes)
        assert asyncio.get_running_loop().time() <= 21
        assert nodes.at_once() == 2
        assert state.over == Over(ending=Ending.DONE, why="", left={})
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


def test_silence_is_a_failure_and_ends_what_may_not_fail() -> None:
    async def work() -> None:
        nodes = SimulatedNodes()
        notes = Notes()
        rollout = new(began([1, 2], [3], timeout=100), nodes, notes)
        doing = asyncio.create_task(rollout.run(resume=False))
        await asyncio.sleep(0.5)
        nodes.silent.add(node(2))
        over = await doing
        assert over.ending is Ending.FAILURES
        assert over.why == "1 node failed, and none may"
        assert words(rollout.state) == ["succeeded", "silent", "not reached"]
        assert over.left == {node(2): "did not answer"}
        assert rollout.state.failed[node(2)].reason == (
            "did not tell within 1m 40s how its run ended: did not answer"
        )

    run_simulated(work())


def test_what_is_not_ready_is_refused_before_anything_changed() -> None:
    async def work() -> None:
        nodes = SimulatedNodes(silent={node(2)}, unready={node(3): "on hold: work"})
        state = await carry_out(began([1, 2], [3]), nodes)
        assert state.over is not None
        assert state.over.ending is Ending.NOT_READY
        assert state.over.why == ("n02.example.com: did not answer; n03.example.com: on hold: work")
        assert (nodes.ran, nodes.holds) == ({}, 0)

    run_simulated(work())


def test_what_is_not_ready_is_left_out_unless_another_needs_it() -> None:
    async def work(*, needed: bool) -> State:
        nodes = SimulatedNodes(unready={node(1): "on hold: work"})
        first = began([1, 2], [3], skip_unready=True)
        consumers: dict[NodeName, tuple[NodeName, ...]] = {node(1): (node(3),)} if needed else {}
        first = Began(
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
    assert state.over.why.endswith(
        "not left out, because n03.example.com consumes what n01.example.com produces"
    )


@pytest.mark.parametrize("times", [1, 2])
def test_a_stop_lets_runs_end_and_a_second_one_does_not(times: int) -> None:
    async def work() -> None:
        nodes = SimulatedNodes({node(1): 50.0})
        rollout = new(began([1], [2]), nodes, Notes())
        doing = asyncio.create_task(rollout.run(resume=False))
        await asyncio.sleep(10)
        for _ in range(times):
            rollout.stop("interrupted")
        over = await doing
        assert over == Over(ending=Ending.STOPPED, why="interrupted", left={})
        assert asyncio.get_running_loop().time() == (50 if times == 1 else 10)
        assert words(rollout.state) == ["succeeded" if times == 1 else "silent", "not reached"]
        assert nodes.held == set()

    run_simulated(work())


def test_a_stop_before_the_first_run_starts_none() -> None:
    async def work() -> None:
        nodes = SimulatedNodes()
        rollout = new(began([1]), nodes, Notes())
        rollout.stop("interrupted")
        assert (await rollout.run(resume=False)).ending is Ending.STOPPED
        assert nodes.ran == {}

    run_simulated(work())


def test_another_process_can_ask_for_a_stop() -> None:
    async def work() -> None:
        notes = Notes()
        rollout = new(began([1], [2]), SimulatedNodes({node(1): 50.0}), notes)
        doing = asyncio.create_task(rollout.run(resume=False))
        await asyncio.sleep(10)
        notes.stop = "bob"
        assert (await doing).why == "stopped by bob"

    run_simulated(work())


def test_what_was_stopped_goes_on() -> None:
    async def work() -> None:
        nodes, notes = SimulatedNodes(), Notes()
        first = began([1], [2], [3])
        rollout = new(first, nodes, notes)
        rollout.stop("interrupted")
        await rollout.run(resume=False)
        again = execution(State.of(notes.events), nodes, notes)
        assert again.state.resumable
        over = await again.run(resume=True)
        assert (over.ending, words(again.state)) == (Ending.DONE, ["succeeded"] * 3)
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
        assert nodes.ran[Turn(1, node(2))][0] >= 7.5

    run_simulated(work())


def test_a_check_that_never_passes_ends_the_rollout_and_gives_the_nodes_back() -> None:
    async def work() -> None:
        probe = SimulatedProbe(bad={"http://n01.example.com/"})
        nodes = SimulatedNodes()
        state = await carry_out(began([1, 2], [3], checks=(CHECK,)), nodes, probe=probe)
        assert words(state) == ["failed", "succeeded", "not reached"]
        assert state.failed[node(1)].reason == (
            "check http://n01.example.com/: answered 503, 5 times"
        )
        assert state.over is not None
        assert state.over.ending is Ending.FAILURES
        assert nodes.held == set()

    run_simulated(work())


def test_a_second_stop_does_not_wait_for_checks_either() -> None:
    async def work() -> None:
        probe = SimulatedProbe(bad={"http://n01.example.com/"})
        nodes = SimulatedNodes()
        rollout = new(began([1], [2], checks=(CHECK,)), nodes, Notes(), probe)
        doing = asyncio.create_task(rollout.run(resume=False))
        await asyncio.sleep(2)
        rollout.stop("interrupted")
        rollout.stop("interrupted")
        await doing
        assert asyncio.get_running_loop().time() == 2
        assert rollout.state.failed[node(1)].reason == "its checks were not waited for"

    run_simulated(work())


class Deaf(SimulatedNodes):
    """Nodes whose news nobody hears, and a bus that is away at times."""

    async def ready(self, nodes: object) -> Problems:
        raise UnavailableError("away")


def test_a_bus_that_is_away_before_anything_changed_is_an_error() -> None:
    async def work() -> None:
        nodes, notes = Deaf(), Notes()
        with pytest.raises(UnavailableError):
            await carry_out(began([1]), nodes, notes)
        assert nodes.holds == 0
        assert notes.events[-1] == Over(ending=Ending.NOT_READY, why="away", left={})

    run_simulated(work())


class Forgetful(SimulatedNodes):
    """Nodes that answer every other time only, and tell no news."""

    asked = 0

    async def start(self, turn: Turn, *, epoch: int) -> Asked:
        self.asked += 1
        if self.asked % 2:
            return Asked(heard=False, problem="away")
        found = await super().start(turn, epoch=epoch)
        self.news = asyncio.Queue()
        return found


def test_an_answer_that_is_lost_costs_time_only() -> None:
    async def work() -> None:
        nodes = Forgetful()
        state = await carry_out(began([1], [2]), nodes)
        assert words(state) == ["succeeded", "succeeded"]
        assert len(nodes.ran) == 2

    run_simulated(work())


FIRSTS = {
    "groups": began([1, 2], [2, 3], [4]),
    "window": began([1, 2, 3, 4], window=2),
    "batches": began([1, 2, 3, 4, 5], batch=Amount.parse("2", what=""), canary=1),
    "one fails": began([1, 2], [3], max_failures=ONE),
    "skipped": began([1, 2], [3], skip_unready=True),
    "checks": began([1, 2, 3], [4], window=2, checks=(CHECK,), max_failures=ONE),
}


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("name", FIRSTS)
def test_a_kill_at_every_write(name: str, *, written: bool) -> None:
    """Killed at each write of the journal, and then again at each of the one that goes on."""
    first = FIRSTS[name]
    planned = {Turn(step, one) for step, group in enumerate(first.groups, 1) for one in group}
    deaths = 0
    for kill_at in range(1, 100):
        for again_after in range(6):
            nodes = SimulatedNodes(bad={node(2)} if name == "one fails" else set())
            nodes.unready = {node(1): "on hold"} if name == "skipped" else {}
            notes = Notes(kill_at=kill_at, written=written)
            probe = SimulatedProbe(bad={"http://n03.example.com/"}, notes=notes)

            async def work(
                notes: Notes = notes, nodes: SimulatedNodes = nodes, probe: SimulatedProbe = probe
            ) -> State | None:
                nodes.notes = notes
                return await carry_out(first, nodes, notes, probe)

            async def resumed(
                notes: Notes = notes, nodes: SimulatedNodes = nodes, probe: SimulatedProbe = probe
            ) -> State | None:
                nodes.news = asyncio.Queue()
                notes.killed = False
                state = State.of(notes.events)
                if not state.resumable:
                    return state
                again = execution(state, nodes, notes, probe)
                await again.run(resume=True)
                return again.state

            if dies(work()) is not None:
                assert deaths > 5
                return
            deaths += 1
            notes.kill_at = len(notes.events) + again_after
            state = dies(resumed())
            if state is None:
                notes.kill_at = None
                state = dies(resumed())
            assert state is not None
            judge(state, notes, nodes, planned)


def dies(work: "asyncio.Future[State | None] | object") -> State | None:
    """Return what work comes to; `None` where it was killed."""
    try:
        return run_simulated(work)  # type: ignore[arg-type]
    except Killed:
        return None
    except BaseExceptionGroup as group:
        assert group.subgroup(Killed) is not None
        return None


def judge(state: State, notes: Notes, nodes: SimulatedNodes, planned: set[Turn]) -> None:
    """Check that no node runs twice in a step, none is left out, none stays held."""
    started = [turn for one in notes.events if isinstance(one, Started) for turn in one.turns]
    assert len(started) == len(set(started))
    ends = [one.turn for one in notes.events if isinstance(one, Ended)]
    assert sorted(ends) == sorted(started)
    checked = [one.turn for one in notes.events if isinstance(one, Checked)]
    assert len(checked) == len(set(checked)), "what was checked is not checked again"
    assert sorted(checked) == sorted(turn for turn in started if state.checks(turn))
    assert state.unchecked == []
    assert state.over is not None
    assert state.over.ending is Ending.DONE
    left_out = {turn for turn in planned if turn.node in {*state.skipped, *state.failed}}
    assert planned - left_out <= set(nodes.ran) <= planned
    assert nodes.held == set()
    assert state.epoch == 1 + sum(isinstance(one, Resumed) for one in notes.events)
    assert all(fate is not Fate.NOT_REACHED for fate in state.fates().values())
