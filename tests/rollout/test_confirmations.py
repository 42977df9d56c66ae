"""How a rollout reads a node's report on the confirmation of its release."""

from typing import Any

import pytest

from localpuppet.base.formats.values import Json
from localpuppet.fleet.requests.arguments import DeployAction
from localpuppet.rollout.deliveries import PATIENT, PAUSES, NodeRunAnswer
from localpuppet.rollout.events import NodeResult, NodeRun, NodeRunEnded
from tests.doubles.simulated_loop import run_simulated
from tests.rollout.answering import replied
from tests.rollout.simulated import ID, node
from tests.rollout.test_deliveries import SILENCE, Client, one_group

NONCE = "9b2c3f70-0000-4000-8000-000000000000"
WELL = NodeRunEnded(
    node_run=NodeRun(1, node(1)), result=NodeResult.SUCCEEDED, outcome="changed", run="R2"
)
CONFIRMED = replied({"state": "confirmed"})


def status(stage: str | None, **more: Any) -> dict[str, Json]:
    """Return the status of a node that took the release of this rollout."""
    told: dict[str, Json] = {"serial": 5, "rollout": ID, "stage": stage, "reason": "w", "nonce": ""}
    return {
        "assignment": {"serial": 5, "rollout": ID, "confirm": 90.0},
        "confirmation": None if stage is None else {**told, **more},
    }


def confirm(client: Client, end: NodeRunEnded = WELL) -> NodeRunAnswer:
    work = one_group(client).confirm(end, epoch=2, serial=5)
    asked: NodeRunAnswer = run_simulated(work)
    return asked


@pytest.mark.parametrize("fate", [NodeResult.SUCCEEDED, NodeResult.FAILED])
def test_the_caller_confirms_with_the_nonce_also_after_a_failed_run(
    fate: NodeResult,
) -> None:
    client = Client(replied(status("pending", nonce=NONCE)), CONFIRMED)
    end = NodeRunEnded(node_run=WELL.node_run, result=fate, outcome="failed", run="R2")
    assert confirm(client, end) == NodeRunAnswer(end=end)
    ((name, args),) = client.asked
    assert (name, args.action, args.nonce, args.serial) == (node(1), DeployAction.CONFIRM, NONCE, 5)
    assert args.rollout is not None
    assert (args.rollout.id, args.rollout.epoch) == (ID, 2)


@pytest.mark.parametrize(
    "told",
    [
        status("confirmed"),
        {"assignment": None},  # an older version
        {"assignment": {"serial": 5, "rollout": ID}, "confirmation": None},
        {
            "assignment": {"serial": 5, "rollout": ID, "confirm": 0.0}
        },  # that node does not wait for a confirmation
        {
            **status("pending", nonce=NONCE),
            "assignment": None,
        },
    ],
)
def test_without_a_pending_confirmation_nothing_is_sent(told: dict[str, Json]) -> None:
    client = Client(replied(told))
    assert confirm(client) == NodeRunAnswer(end=WELL)
    assert client.asked == []


@pytest.mark.parametrize("outcome", ["dropped", ""])
def test_without_a_run_the_node_is_not_asked(outcome: str) -> None:
    ended = NodeRunEnded(node_run=WELL.node_run, result=NodeResult.FAILED, outcome=outcome)
    assert confirm(Client(SILENCE), ended) == NodeRunAnswer(end=ended)


def test_an_interrupted_run_of_a_node_that_rolled_back_has_that_result() -> None:
    ended = NodeRunEnded(node_run=WELL.node_run, result=NodeResult.FAILED, outcome="interrupted")
    told = {**status("rolled back"), "rollback": BACK, "last_run": LAST}
    asked = confirm(Client(replied(told)), ended)
    assert asked.end is not None
    assert asked.end.result is NodeResult.ROLLED_BACK


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        (status("pending"), "w"),
        (status("rolling back", reason=""), "it is rolling back"),
        (status("nonsense"), "does not wait"),
        (status(None), "does not wait"),
    ],
)
def test_an_unconfirmed_release_is_asked_about_again(told: dict[str, Json], problem: str) -> None:
    asked = confirm(Client(replied(told)))
    assert asked.end is None
    assert "its release is not confirmed: " in asked.problem
    assert problem in asked.problem


def test_a_node_that_refuses_or_is_unresponsive_is_asked_again() -> None:
    refusals = [replied("it could not make a new connection yet")] * len(PAUSES)
    client = Client(replied(status("pending", nonce=NONCE)), *refusals)
    assert confirm(client).problem.endswith("it could not make a new connection yet")
    assert confirm(Client(SILENCE)) == NodeRunAnswer(problem="did not answer")


def test_a_node_that_never_begins_is_not_waited_for_without_end() -> None:
    ours = one_group(Client(replied(status(None))))
    found = [run_simulated(ours.confirm(WELL, epoch=1, serial=5)) for _ in range(PATIENT)]
    assert [one.end for one in found] == [None] * (PATIENT - 1) + [WELL]


LAST: dict[str, Json] = {"release": "shop/tags/r6", "run": "R3"}
BACK: dict[str, Json] = {"release": "shop/tags/r6"}


@pytest.mark.parametrize(
    ("stage", "told", "fate"),
    [
        ("rolled back", {"rollback": BACK, "last_run": LAST}, NodeResult.ROLLED_BACK),
        ("rolled back", {"rollback": BACK, "last_run": {**LAST, "run": "R2"}}, None),
        ("rolled back", {"rollback": BACK, "last_run": {**LAST, "release": "shop/tags/r7"}}, None),
        ("rolled back", {"rollback": None, "last_run": LAST}, None),
        ("rolled back", {}, None),
        ("rollback failed", {"rollback": BACK, "last_run": LAST}, NodeResult.ROLLBACK_FAILED),
        ("superseded", {"rollback": BACK, "last_run": LAST}, NodeResult.FAILED),
    ],
)
def test_a_node_has_rolled_back_when_its_status_names_a_run_of_the_old_release(
    stage: str, told: dict[str, Json], fate: NodeResult | None
) -> None:
    asked = confirm(Client(replied({**status(stage, reason="no\x1b connection"), **told})))
    assert (asked.end.result if asked.end else None) == fate
    if asked.end is not None:
        assert "no\\x1b connection" in asked.end.reason
