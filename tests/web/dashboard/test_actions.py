"""The actions on nodes and rollouts, and what their confirmations say."""

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName, ReleasePath, RolloutId
from localpuppet.fleet.inventory.node_row import HoldView, NodeRow
from localpuppet.rollout.events import (
    Event,
    NodeRun,
    NodeRunsStarted,
    RolloutBegan,
    RolloutEnded,
    RolloutEnding,
    RolloutPaused,
    RolloutStopped,
)
from localpuppet.rollout.rollout_options import Delivery, RolloutOptions
from localpuppet.rollout.rollout_report import RolloutReport
from localpuppet.web.dashboard.actions import (
    Action,
    ActionOutcome,
    ActionResult,
    NodeAction,
    NodeVerdict,
    consequences,
)
from localpuppet.web.dashboard.rollout_actions import (
    RolloutAction,
    courses,
    rollout_consequences,
)

NODE, OTHER = NodeName.parse("web01"), NodeName.parse("web02")
HELD = HoldView(owner="bob", reason="disk", until=None)


def test_a_hold_needs_a_reason_and_may_have_an_end() -> None:
    deed = NodeAction.read(Action.HOLD, (NODE,), {"message": " disk ", "length": "2h", "x": "y"})
    assert str(deed) == "hold (for 2h: disk)"
    assert deed.command == "localpuppet disable web01 -m disk --for 2h"
    endless = NodeAction.read(Action.HOLD, (NODE, OTHER), {"message": "disk 'a'"})
    assert str(endless) == "hold (without end: disk 'a')"
    assert endless.command == """localpuppet disable web01 web02 -m 'disk '"'"'a'"'"''"""
    for form in ({}, {"message": " "}, {"message": "a\nb"}, {"message": "a", "length": "soon"}):
        with pytest.raises(InvalidInputError):
            NodeAction.read(Action.HOLD, (NODE,), form)


def test_other_actions_ignore_the_fields_of_a_hold() -> None:
    deed = NodeAction.read(Action.NOOP, (NODE,), {"message": "x"})
    assert deed == NodeAction(action=Action.NOOP, nodes=(NODE,))
    assert deed.command == "localpuppet runonce --noop web01"
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


def test_commands_are_offered_for_a_rollout_with_a_running_process() -> None:
    interrupted, running = told(taken=False), told(taken=True)
    assert courses(running) == (RolloutAction.PAUSE, RolloutAction.STOP)
    said = " ".join(rollout_consequences(RolloutAction.STOP, interrupted))
    assert "It is interrupted: no process" in said
    assert "no process" not in " ".join(rollout_consequences(RolloutAction.STOP, running))
    assert "does not wait" in " ".join(rollout_consequences(RolloutAction.CONTINUE, running))
    stops_by_itself = rollout_consequences(RolloutAction.PAUSE, running)[-1]
    assert stops_by_itself == "Without a decision within 1h it stops."
    paused = told(RolloutPaused(reason="canaries"), taken=True)
    assert courses(paused) == (RolloutAction.CONTINUE, RolloutAction.STOP)
    assert "accepts its failures" in rollout_consequences(RolloutAction.CONTINUE, paused)[-1]
    requested = told(RolloutPaused(reason="paused by bob", requested_by="bob"), taken=True)
    assert rollout_consequences(RolloutAction.CONTINUE, requested)[-1] == "It is paused: by bob."
    assert "does not wait" not in " ".join(rollout_consequences(RolloutAction.CONTINUE, paused))
    with pytest.raises(
        InvalidInputError, match="is not one of pause, continue, stop, rollback, resume"
    ):
        RolloutAction.parse("reboot")


def test_rollback_is_offered_if_the_rollout_delivers_a_release() -> None:
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


def test_resume_is_offered_for_a_rollout_without_a_process() -> None:
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
def test_the_confirmation_names_the_required_right(action: Action) -> None:
    assert "it must allow you" in consequences(action, [NodeRow(node="a", state="idle")])[-1]


def test_the_confirmation_names_the_nodes_that_may_refuse() -> None:
    def said(action: Action, *rows: NodeRow) -> str:
        return " ".join(consequences(action, rows))

    idle, dead = NodeRow(node="idle", state="idle"), NodeRow(node="dead")
    assert "may not receive the request: dead." in said(Action.HOLD, idle, dead)
    assert "Unresponsive" not in said(Action.HOLD, idle)
    held = NodeRow(node="held", state="on hold", holds=(HELD,))
    assert "no run starts before the hold ends: held." in said(Action.NOOP, held, idle)
    assert "earlier one: held." in said(Action.HOLD, held, idle)
    assert "Not on hold, by the last status: idle." in said(Action.ENABLE, held, idle)
    assert "the new one follows it: a." in said(Action.TRIGGER, NodeRow(node="a", cause="timer"))
    strange = NodeRow(node="odd", state="not trusted")
    assert "Not trusted, replies are rejected: odd." in said(Action.HOLD, strange)


def test_the_result_of_an_action_has_counts_and_the_opposite_action() -> None:
    deed = NodeAction(action=Action.HOLD, nodes=(NODE, OTHER), message="disk")
    fine = ActionResult(node=NODE, verdict=NodeVerdict.ACCEPTED)
    refused = ActionResult(node=OTHER, verdict=NodeVerdict.REFUSED, reason="the policy denies it")
    came = ActionOutcome.of_nodes(deed, [fine, refused])
    assert came.text == "1 refused, 1 accepted"
    assert came.line == f"{came.text} (web02: the policy denies it)"
    assert [one.node for one in came.results] == [OTHER, NODE]
    assert (came.names(good=True), came.names(good=False)) == ((NODE,), (OTHER,))
    assert (came.failed, came.opposite) == (False, Action.ENABLE)
    ended = NodeAction(action=Action.ENABLE, nodes=(OTHER,))
    assert ActionOutcome.of_nodes(ended, [refused]).failed
    assert ActionOutcome.of_nodes(ended, [fine]).opposite is Action.HOLD
