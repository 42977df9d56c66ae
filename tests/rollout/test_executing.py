"""Rollouts over simulated nodes in simulated time."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.converter import from_record, to_record
from localpuppet.base.formats.names import ReleasePath
from localpuppet.rollout.commands import RolloutCommand
from localpuppet.rollout.deciding import why_not_ready
from localpuppet.rollout.deliveries import NodeRunAnswer, Problems
from localpuppet.rollout.events import (
    NodeRun,
    RolloutBegan,
    RolloutEnding,
    RolloutResumed,
    StagingEnded,
)
from localpuppet.rollout.executing import RENEW, Execution
from localpuppet.rollout.rollout_options import Amount, Delivery, OnFailure, RolloutOptions
from localpuppet.rollout.state import ProgressState, ProgressStates, RolloutState
from tests.rollout.make import (
    RELEASE,
    Notes,
    SimulatedNodes,
    SimulatedProbe,
    began,
    begun,
    carry_out,
    execution,
    new,
    node,
    reported,
    rollout_over,
    words,
)

pytestmark = pytest.mark.simulated
CHECK = "http://%{node}/"
ONE = Amount.parse("1", what="")


async def test_a_window_moves_on_with_each_end() -> None:
    """Two at a time, of 5, 20, 5 and 5 seconds: the long one does not hold up the others."""

    nodes = SimulatedNodes({node(1): 5.0, node(2): 20.0, node(3): 5.0, node(4): 5.0})
    state = await carry_out(began([1, 2, 3, 4], window=2), nodes)
    assert asyncio.get_running_loop().time() <= 21
    assert nodes.at_once() == 2
    assert state.over == rollout_over()
    assert words(state) == ["succeeded"] * 4
    assert nodes.held == set()


async def test_an_unresponsive_node_is_a_failure_and_ends_the_rollout() -> None:
    nodes = SimulatedNodes()
    notes = Notes()
    rollout, doing = await begun(began([1, 2], [3], timeout=100), nodes, notes, after=0.5)
    nodes.silent.add(node(2))
    over = await doing
    assert over.ending is RolloutEnding.FAILED
    assert over.reason == "1 node failed; none may fail"
    assert words(rollout.state) == ["succeeded", "unresponsive", "not reached"]
    assert over.still_held == {node(2): "did not answer"}
    assert rollout.state.failed[node(2)].reason == (
        "did not report within 1m 40s how its run ended: did not answer"
    )


HOLD = "on hold: work"
SKIPPING = began([1, 2], [3], skip_unready=True)


@pytest.mark.parametrize(
    ("unready", "first", "results", "reason"),
    [
        pytest.param(
            {2: "did not answer", 3: HOLD},
            began([1, 2], [3]),
            ["not reached"] * 3,
            f"n02.example.com: did not answer; n03.example.com: {HOLD}",
            id="they end it before any change",
        ),
        pytest.param({1: HOLD}, SKIPPING, ["skipped", *["succeeded"] * 2], "", id="left out"),
        pytest.param(
            {1: HOLD},
            replace(SKIPPING, consumers={node(1): (node(3),)}),
            ["not reached"] * 3,
            f"n01.example.com: {HOLD}; not left out, because n03.example.com consumes what"
            " n01.example.com produces",
            id="another needs it",
        ),
        pytest.param(
            {1: HOLD, 2: HOLD},
            began([1], [2], skip_unready=True),
            ["not reached"] * 2,
            f"n01.example.com, n02.example.com: {HOLD}",
            id="none is ready",
        ),
    ],
)
async def test_unready_nodes(
    unready: dict[int, str], first: RolloutBegan, results: list[str], reason: str
) -> None:
    nodes = SimulatedNodes(unready={node(number): why for number, why in unready.items()})
    state = await carry_out(first, nodes)
    assert state.over is not None
    ending = RolloutEnding.NOT_READY if reason else RolloutEnding.DONE
    assert (words(state), state.over.ending, state.over.reason) == (results, ending, reason)
    assert (nodes.ran == {}, nodes.holds == 0) == (bool(reason), bool(reason))


async def test_a_node_that_reports_its_result_is_asked_once() -> None:
    """The controller asks a failed node for the reason, and a producer for its entry."""

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


def interrupt(rollout: Execution, _: Notes) -> None:
    rollout.interrupt("interrupted")


def command(_: Execution, notes: Notes) -> None:
    notes.words.append((RolloutCommand.STOP, "bob"))


@pytest.mark.parametrize(
    ("acts", "reason", "seconds", "result"),
    [
        pytest.param([interrupt], "interrupted", 50, "succeeded", id="runs end"),
        pytest.param(
            [interrupt] * 2, "interrupted", 10, "unresponsive", id="a second does not wait"
        ),
        pytest.param([command], "stopped by bob on pc", 50, "succeeded", id="by another process"),
        pytest.param(
            [command, interrupt],
            "stopped by bob on pc",
            50,
            "succeeded",
            id="a command is the first",
        ),
    ],
)
async def test_a_stop(
    acts: list[Callable[[Execution, Notes], None]], reason: str, seconds: int, result: str
) -> None:
    nodes, notes = SimulatedNodes({node(1): 50.0}), Notes()
    rollout = new(began([1], [2]), nodes, notes)
    doing = asyncio.create_task(rollout.run())
    for act in acts:
        await asyncio.sleep(5)
        act(rollout, notes)
    assert await doing == rollout_over(RolloutEnding.STOPPED, reason)
    assert asyncio.get_running_loop().time() == (5 * len(acts) if seconds == 10 else seconds)
    assert words(rollout.state) == [result, "not reached"]
    assert nodes.held == set()


async def test_a_stopped_rollout_can_be_resumed() -> None:
    nodes, notes = SimulatedNodes(), Notes()
    first = began([1], [2], [3])
    rollout = new(first, nodes, notes)
    rollout.stop("interrupted")
    assert ((await rollout.run()).ending, nodes.ran) == (RolloutEnding.STOPPED, {})
    again = execution(RolloutState.of(notes.events), nodes, notes)
    assert again.state.resumable
    over = await again.run(RolloutResumed())
    assert (over.ending, words(again.state)) == (RolloutEnding.DONE, ["succeeded"] * 3)
    assert not again.state.resumable


async def test_a_window_waits_for_checks_and_a_check_may_take_some_tries() -> None:
    """The first node's service is up 7 s after the beginning: its run ends at 1 s."""

    probe = SimulatedProbe(up={"http://n01.example.com/": 7.0})
    nodes = SimulatedNodes()
    first = began([1, 2], window=1, checks=(CHECK,))
    state = await carry_out(first, nodes, probe=probe)
    assert words(state) == ["succeeded", "succeeded"]
    assert [check for check, _ in probe.tried[:4]] == ["http://n01.example.com/"] * 3 + [
        "http://n02.example.com/"
    ]
    assert nodes.ran[NodeRun(1, node(2))][0] >= 7.5


async def test_a_check_that_never_passes_ends_the_rollout_and_releases_the_nodes() -> None:
    probe = SimulatedProbe(bad={"http://n01.example.com/"})
    nodes = SimulatedNodes()
    state = await carry_out(began([1, 2], [3], checks=(CHECK,)), nodes, probe=probe)
    assert words(state) == ["failed", "succeeded", "not reached"]
    assert state.failed[node(1)].reason == ("check http://n01.example.com/: answered 503, 5 times")
    assert state.over is not None
    assert state.over.ending is RolloutEnding.FAILED
    assert nodes.held == set()


async def test_a_second_stop_does_not_wait_for_checks_either() -> None:
    probe = SimulatedProbe(bad={"http://n01.example.com/"})
    rollout = new(began([1], [2], checks=(CHECK,)), SimulatedNodes(), Notes(), probe)
    doing = asyncio.create_task(rollout.run())
    await asyncio.sleep(2)
    for _ in range(2):
        rollout.interrupt("interrupted")
    await doing
    assert asyncio.get_running_loop().time() == 2
    assert rollout.state.failed[node(1)].reason == "its checks were not awaited"


class Deaf(SimulatedNodes):
    """Nodes whose reports do not arrive, on a bus that is unreachable at times."""

    async def ready(self, nodes: object) -> Problems:
        raise UnavailableError("away")


async def test_an_unreachable_bus_before_any_change_is_an_error() -> None:
    nodes, notes = Deaf(), Notes()
    with pytest.raises(UnavailableError):
        await carry_out(began([1]), nodes, notes)
    assert nodes.holds == 0
    assert notes.events[-1] == rollout_over(RolloutEnding.NOT_READY, "away")


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


async def test_a_lost_reply_costs_only_time() -> None:
    nodes = Forgetful()
    state = await carry_out(began([1], [2]), nodes)
    assert words(state) == ["succeeded", "succeeded"]
    assert len(nodes.ran) == 2


BACK = {"delivery": RELEASE, "on_failure": OnFailure.ROLLBACK}


async def test_all_nodes_stage_a_release_before_the_first_change_and_stay_on_hold() -> None:
    nodes, notes = SimulatedNodes(staging=1000.0), Notes()
    state = await carry_out(began([1, 2], [3], delivery=RELEASE), nodes, notes)
    assert nodes.staged == [({node(1), node(2), node(3)}, 1)]
    assert nodes.holds > 1000 / RENEW
    assert words(state) == ["succeeded"] * 3
    serials = {node(number): 7 + number for number in (1, 2, 3)}
    assert (state.serials, StagingEnded(serials=serials) in notes.events) == (serials, True)


@pytest.mark.parametrize(
    ("skip", "results", "reason"),
    [
        (False, ["not reached", "not reached"], "n02.example.com: no class shop"),
        (True, ["succeeded", "skipped"], ""),
    ],
)
async def test_a_node_that_cannot_take_it_stops_it_before_anything_changed(
    skip: bool, results: list[str], reason: str
) -> None:
    nodes = SimulatedNodes(unstaged={node(2): "no class shop"})
    state = await carry_out(began([1, 2], delivery=RELEASE, skip_unready=skip), nodes)
    assert state.over is not None
    assert (words(state), state.over.reason, nodes.held) == (results, reason, set())
    assert (state.over.ending is RolloutEnding.NOT_READY) == (nodes.ran == {}) == bool(reason)


async def test_a_stop_while_it_is_brought_ends_it_before_anything_changed() -> None:
    nodes = SimulatedNodes(staging=10_000.0)
    rollout, doing = await begun(began([1], delivery=RELEASE), nodes, Notes(), after=5)
    rollout.interrupt("stopped by SIGINT")
    over = await doing
    assert (over.ending, nodes.ran, nodes.held) == (RolloutEnding.STOPPED, {}, set())
    assert asyncio.get_running_loop().time() < 10


async def test_a_failure_rolls_the_release_back_from_the_last_group() -> None:
    """Nodes that the rollout did not reach have nothing to roll back."""

    nodes = SimulatedNodes(bad={node(3)}, back=4)
    state = await carry_out(began([1, 2], [3], [4], **BACK), nodes)
    assert words(state) == ["rolled back", "rolled back", "rolled back", "not reached"]
    assert state.over is not None
    assert state.over.ending is RolloutEnding.FAILED
    first, *others = [turn.node for turn in nodes.ran if turn.step == 4]
    assert (first, sorted(others)) == (node(3), [node(1), node(2)])
    assert nodes.ran[NodeRun(4, node(1))][0] >= nodes.ran[NodeRun(4, node(3))][1]
    assert nodes.held == set()


async def test_a_node_that_dies_in_a_rollback_is_not_running_until_it_answers_again() -> None:
    nodes = SimulatedNodes(bad={node(2)}, back=2)
    rollout = new(began([1, 2], **BACK), nodes, Notes())
    doing = asyncio.create_task(rollout.run())
    turn = NodeRun(2, node(1))
    while NodeRun(1, node(1)) not in nodes.ran:
        await asyncio.sleep(0.1)
    nodes.seconds[node(1)] = 100.0
    while turn not in nodes.ran:
        await asyncio.sleep(0.1)
    nodes.silent.add(node(1))
    nodes.news.put_nowait((turn, None))  # its presence is gone
    await asyncio.sleep(10)
    assert ProgressStates(rollout.state).nodes[node(1)] is ProgressState.WAITING
    nodes.silent.clear()
    await asyncio.sleep(10)
    assert ProgressStates(rollout.state).nodes[node(1)] is ProgressState.RUNNING
    await doing
    assert words(rollout.state) == ["rolled back", "rolled back"]


async def test_a_failed_rollback_does_not_stop_the_others() -> None:
    nodes = SimulatedNodes(bad={node(2)}, stuck={node(2)}, back=2)
    notes = Notes()
    state = await carry_out(began([1, 2, 3], window=2, **BACK), nodes, notes)
    assert words(state) == ["rolled back", "rollback failed", "not reached"]
    report = reported(*notes.events)
    assert not report.succeeded
    assert [run["node"] for run in report.to_dict()["rollback_runs"]] == [node(1), node(2)]


async def test_an_unresponsive_node_delays_no_other_rollback() -> None:
    nodes = SimulatedNodes(bad={node(2)}, untaken={node(2)}, back=3)
    rollout, doing = await begun(began([1], [2, 3], timeout=50, **BACK), nodes, Notes(), after=1.5)
    nodes.silent.add(node(3))
    await doing
    assert words(rollout.state) == ["rolled back", "failed", "rollback failed"]
    assert nodes.ran[NodeRun(3, node(1))][1] < 55
    assert rollout.state.over is not None
    assert set(rollout.state.over.still_held) == {node(3)}


async def test_a_stop_by_a_person_rolls_nothing_back() -> None:
    nodes = SimulatedNodes(back=3)
    rollout, doing = await begun(began([1], [2], **BACK), nodes, Notes(), after=1.5)
    rollout.interrupt("stopped by SIGINT")
    await doing
    assert words(rollout.state) == ["succeeded", "not reached"]


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


def test_equal_reasons_are_grouped_and_of_many_the_rarest_are_only_counted() -> None:
    state = RolloutState(began(range(1, 9)))

    def said(problems: dict[int, str]) -> str:
        return why_not_ready(state, {node(number): why for number, why in problems.items()})

    silent = dict.fromkeys(range(2, 9), "did not answer")
    assert said({1: "on hold: work", **silent}) == (
        f"{', '.join(node(number) for number in range(2, 7))} and 2 more: did not answer; "
        f"{node(1)}: on hold: work"
    )
    reasons = {number: f"reason {number}" for number in range(1, 6)}
    assert said(reasons).endswith(f"{node(3)}: reason 3; and 2 more")
