"""What a person may have a node do."""

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName, ReleasePath, RolloutId
from localpuppet.fleet.inventory.node_row import HoldView, NodeRow
from localpuppet.rollout.execution.delivery import Delivery
from localpuppet.rollout.execution.events import (
    Event,
    NodeRun,
    NodeRunsStarted,
    RolloutBegan,
    RolloutEnded,
    RolloutEnding,
    RolloutPaused,
    RolloutStopped,
)
from localpuppet.rollout.execution.options import RolloutOptions
from localpuppet.rollout.execution.report import RolloutReport
from localpuppet.web.dashboard.actions import (
    Action,
    NodeAction,
    consequences,
)
from localpuppet.web.dashboard.rollout_actions import (
    RolloutAction,
    courses,
    rollout_consequences,
)

NODE = NodeName.parse("web01")
HELD = HoldView(owner="bob", reason="disk", until=None)


def test_a_hold_needs_a_reason_and_may_have_an_end() -> None:
    deed = NodeAction.read(Action.HOLD, NODE, {"message": " disk ", "length": "2h", "x": "y"})
    assert str(deed) == "hold (for 2h: disk)"
    assert (
        str(NodeAction.read(Action.HOLD, NODE, {"message": "disk"})) == "hold (without end: disk)"
    )
    for form in ({}, {"message": " "}, {"message": "a\nb"}, {"message": "a", "length": "soon"}):
        with pytest.raises(InvalidInputError):
            NodeAction.read(Action.HOLD, NODE, form)


def test_other_actions_take_nothing_of_a_form() -> None:
    assert NodeAction.read(Action.NOOP, NODE, {"message": "x"}) == NodeAction(
        action=Action.NOOP, node=NODE
    )
    with pytest.raises(InvalidInputError, match="is not one of trigger, noop, hold, enable"):
        Action.parse("reboot")


OPTIONS = RolloutOptions()
ROLLOUT = RolloutId.parse("20261122T110000Z-00aa")


def told(*events: Event, taken: bool, options: RolloutOptions = OPTIONS) -> RolloutReport:
    began = RolloutBegan(
        id=ROLLOUT,
        caller="choria=alice",
        groups=((NODE, NodeName.parse("web02")),),
        options=options,
        title="shop",
    )
    at = "2026-11-22T11:00:00Z"
    return RolloutReport.of([(at, event) for event in (began, *events)], taken=taken)


def test_a_word_is_heard_by_a_rollout_that_a_process_goes_on_with() -> None:
    interrupted, running = told(taken=False), told(taken=True)
    assert courses(running) == (RolloutAction.CONTINUE, RolloutAction.STOP)
    said = " ".join(rollout_consequences(RolloutAction.STOP, interrupted))
    assert "It is interrupted: no process" in said
    assert "no process" not in " ".join(rollout_consequences(RolloutAction.STOP, running))
    assert "does not wait" in " ".join(rollout_consequences(RolloutAction.CONTINUE, running))
    paused = told(RolloutPaused(reason="canaries"), taken=True)
    assert "does not wait" not in " ".join(rollout_consequences(RolloutAction.CONTINUE, paused))
    with pytest.raises(InvalidInputError, match="is not one of continue, stop, rollback, resume"):
        RolloutAction.parse("reboot")


def test_a_release_is_taken_back_where_a_rollout_gave_one() -> None:
    delivery = Delivery(release=ReleasePath("shop/tags/r7"))
    gives = RolloutOptions(delivery=delivery)
    paused = (NodeRunsStarted(node_runs=(NodeRun(1, NODE),)), RolloutPaused(reason="canaries"))

    def said(*events: Event, options: RolloutOptions = gives) -> str:
        report = told(*events, taken=True, options=options)
        assert (RolloutAction.ROLLBACK in courses(report)) == (options is gives and len(events) < 3)
        return " ".join(rollout_consequences(RolloutAction.ROLLBACK, report))

    assert f"{NODE} has taken shop/tags/r7, or may have: each runs once more." in said(*paused)
    assert "No node has taken shop/tags/r7 yet." in said()
    assert "gave no node a release" in said(*paused, options=OPTIONS)
    back = RolloutStopped(ending=RolloutEnding.ROLLED_BACK, reason="taken back by bob")
    assert "Its nodes roll back already." in said(*paused, back)


def test_a_rollout_is_resumed_that_no_process_goes_on_with() -> None:
    interrupted = told(taken=False)
    assert courses(interrupted) == (RolloutAction.RESUME,)
    said = " ".join(rollout_consequences(RolloutAction.RESUME, interrupted))
    assert "even if this dashboard ends" in said
    assert "2 nodes have no result yet." in said
    assert "policies of the nodes decide" in said
    running = " ".join(rollout_consequences(RolloutAction.RESUME, told(taken=True)))
    assert "A process runs it already." in running
    over = told(RolloutEnded(ending=RolloutEnding.DONE, reason="", still_held={}), taken=False)
    assert courses(over) == ()
    assert "It has ended" in rollout_consequences(RolloutAction.RESUME, over)[-1]


@pytest.mark.parametrize("action", list(Action))
def test_what_will_happen_says_which_right_it_needs(action: Action) -> None:
    assert "policy must allow" in consequences(action, NodeRow(node="a", state="idle"))[-1]


def test_what_will_happen_depends_on_how_the_node_is() -> None:
    def said(action: Action, row: NodeRow) -> str:
        return " ".join(consequences(action, row))

    assert "may not receive" in said(Action.HOLD, NodeRow(node="a"))
    held = NodeRow(node="a", state="on hold", holds=(HELD,))
    assert "no run starts before the hold ends" in said(Action.NOOP, held)
    assert "not on hold" in said(Action.ENABLE, NodeRow(node="a", state="idle"))
    assert "not on hold" not in said(Action.ENABLE, held)
    assert "the new one follows it" in said(Action.TRIGGER, NodeRow(node="a", cause="timer"))
