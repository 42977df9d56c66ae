"""Rollouts that wait for a command, and the holds that stay after them."""

import asyncio

import pytest

from localpuppet.base.formats.times import parse_time
from localpuppet.rollout.commands import RolloutCommand
from localpuppet.rollout.events import (
    NodeRun,
    RolloutContinued,
    RolloutEnding,
    RolloutPaused,
)
from localpuppet.rollout.executing import RENEW
from localpuppet.rollout.rollout_options import OnFailure, PauseAfter
from localpuppet.rollout.rollout_report import RolloutReport
from localpuppet.rollout.state import RolloutState
from tests.doubles.simulated_loop import run_simulated
from tests.rollout.simulated import (
    Notes,
    SimulatedNodes,
    began,
    execution,
    new,
    node,
    words,
)

AT = "2026-11-22T11:00:00.000000Z"
PAUSES = began([1, 2, 3], [4], [5], window=1, on_failure=OnFailure.PAUSE)


def test_failures_pause_a_rollout_until_an_operator_continues_it() -> None:
    """Two fail: each of them pauses, what runs ends, and holds are renewed meanwhile."""

    async def work() -> None:
        notes, nodes = Notes(), SimulatedNodes(bad={node(1), node(3)})
        rollout = new(PAUSES, nodes, notes)
        doing = asyncio.create_task(rollout.run(resume=False))
        await asyncio.sleep(3 * RENEW)
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

    run_simulated(work())


@pytest.mark.parametrize("word", [None, RolloutCommand.STOP])
def test_a_pause_ends_by_a_command_or_its_deadline_and_can_be_resumed(
    word: RolloutCommand | None,
) -> None:
    async def work() -> None:
        notes, nodes = Notes(), SimulatedNodes(bad={node(1)})
        rollout = new(PAUSES, nodes, notes)
        doing = asyncio.create_task(rollout.run(resume=False))
        await asyncio.sleep(100)
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
        assert (await again.run(resume=True)).ending is RolloutEnding.DONE
        assert words(again.state) == ["failed", *["succeeded"] * 4]

    run_simulated(work())


def test_a_rollout_that_was_killed_during_a_pause_is_paused_when_it_resumes() -> None:
    async def work() -> None:
        notes, nodes = Notes(), SimulatedNodes(bad={node(1)})
        doing = asyncio.create_task(new(PAUSES, nodes, notes).run(resume=False))
        await asyncio.sleep(100)
        doing.cancel()
        await asyncio.wait([doing])
        again = execution(RolloutState.of(notes.events), nodes, notes)
        resuming = asyncio.create_task(again.run(resume=True))
        await asyncio.sleep(100)
        assert again.state.waits
        assert list(nodes.ran) == [NodeRun(1, node(1))]
        notes.words.append((RolloutCommand.CONTINUE, "bob"))
        assert (await resuming).ending is RolloutEnding.DONE

    run_simulated(work())


def test_the_deadline_of_a_pause_counts_while_no_process_runs_the_rollout() -> None:
    async def work() -> None:
        notes, nodes = Notes(), SimulatedNodes(bad={node(1)})
        doing = asyncio.create_task(new(PAUSES, nodes, notes).run(resume=False))
        await asyncio.sleep(1800)
        doing.cancel()
        await asyncio.wait([doing])
        await asyncio.sleep(1000)
        again = execution(RolloutState.of(notes.events), nodes, notes)
        over = await again.run(resume=True)
        assert over.reason == "no decision within 1h: 1 node failed; none may fail"
        assert 3600 < asyncio.get_running_loop().time() < 3620

    run_simulated(work())


def test_requested_pauses_happen() -> None:
    """After the canaries of each group that has others, and before each group but the first."""

    async def work() -> None:
        notes, nodes = Notes(), SimulatedNodes()
        first = began([1, 2, 3], [4], [5, 6], canary=1, pause=tuple(PauseAfter))
        rollout = new(first, nodes, notes)
        doing = asyncio.create_task(rollout.run(resume=False))
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

    run_simulated(work())


@pytest.mark.parametrize("fails", [False, True])
def test_an_operator_pauses_and_continues_and_accepts_no_failure_by_that(fails: bool) -> None:
    """Running nodes finish and no other starts; the failure limit applies when it continues."""

    async def work() -> None:
        notes = Notes()
        nodes = SimulatedNodes(bad={node(2)} if fails else set(), seconds={node(2): 100.0})
        rollout = new(began([1, 2, 3], [4], window=1), nodes, notes)
        doing = asyncio.create_task(rollout.run(resume=False))
        await asyncio.sleep(20)
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
        decisions = RolloutReport.of([(AT, one) for one in notes.events], taken=False).decisions
        assert decisions[0][1] == "paused by bob on pc"

    run_simulated(work())


def test_failed_nodes_with_a_lost_reply_can_be_released_later() -> None:
    """The replies to its long hold and to its release were lost."""

    async def work() -> None:
        notes, nodes = Notes(), SimulatedNodes(bad={node(1)})
        nodes.deaf_to_ends = {node(1)}
        rollout = new(began([1, 2], [3], investigate=7200.0), nodes, notes)
        over = await rollout.run(resume=False)
        assert (over.held_for_investigation, over.still_held) == (
            (node(1),),
            {node(1): "did not answer"},
        )
        assert nodes.held == {node(1)}
        nodes.deaf_to_ends = set()
        over = await execution(RolloutState.of(notes.events), nodes, notes).give_back()
        assert (over.held_for_investigation, over.still_held, nodes.held) == ((), {}, set())

    run_simulated(work())


def test_a_node_that_did_not_receive_its_release_is_asked_again() -> None:
    """Both for a failed node that stays on hold, and for another node."""

    async def work() -> None:
        notes, nodes = Notes(), SimulatedNodes(bad={node(1)})
        nodes.deaf_to_ends = {node(2)}
        over = await new(began([1, 2], investigate=7200.0), nodes, notes).run(resume=False)
        assert (over.held_for_investigation, over.still_held) == (
            (node(1),),
            {node(2): "did not answer"},
        )
        held = RolloutReport.of([(AT, one) for one in notes.events], taken=False).held_until()
        hours = {one: (end - parse_time(AT)).total_seconds() / 3600 for one, end in held.items()}
        assert hours == {node(1): 2, node(2): 1 / 6}
        nodes.deaf_to_ends = set()
        over = await execution(RolloutState.of(notes.events), nodes, notes).give_back()
        assert (over.held_for_investigation, over.still_held, nodes.held) == ((), {}, set())

    run_simulated(work())


def test_failed_nodes_stay_on_hold_and_are_released_later() -> None:
    async def work() -> None:
        notes, nodes = Notes(), SimulatedNodes(bad={node(1)})
        rollout = new(began([1, 2], [3], investigate=7200.0), nodes, notes)
        over = await rollout.run(resume=False)
        assert over.held_for_investigation == (node(1),)
        assert nodes.kept == {node(1): 7200.0}
        assert nodes.held == {node(1)}
        nodes.silent = {node(1)}
        over = await execution(RolloutState.of(notes.events), nodes, notes).give_back()
        assert (over.held_for_investigation, over.still_held) == (
            (node(1),),
            {node(1): "did not answer"},
        )
        nodes.silent = set()
        over = await execution(RolloutState.of(notes.events), nodes, notes).give_back()
        assert (over.held_for_investigation, over.still_held, over.ending) == (
            (),
            {},
            RolloutEnding.FAILED,
        )
        assert nodes.held == set()

    run_simulated(work())
