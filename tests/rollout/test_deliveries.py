"""Replies of nodes that stage, apply, confirm and leave a release, and what a rollout concludes."""

from collections.abc import Callable
from typing import Any

import pytest

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.names import NodeName, ReleasePath
from localpuppet.base.formats.values import Json
from localpuppet.fleet.requests.request import Arguments, Deploy, DeployAction, StatusRequest
from localpuppet.fleet.requests.request_client import TOO_OLD, NodeAnswer
from localpuppet.rollout import deliveries
from localpuppet.rollout.deliveries import PATIENT, PAUSES, Deliveries, NodeRunAnswer
from localpuppet.rollout.events import NodeResult, NodeRun, NodeRunEnded
from localpuppet.rollout.rollout_options import Delivery
from tests.doubles.simulated_loop import run_simulated
from tests.rollout import make
from tests.rollout.make import ID, began, node, replied, run_ended

RELEASE = Delivery(release=ReleasePath("shop/tags/r7"), classes={"shop": {"port": 81}})
SILENCE = NodeAnswer(reply=None, problem="did not answer")
APPLY, BACK = NodeRun(1, node(1)), NodeRun(2, node(1))
OURS: dict[str, Json] = {"assignment": {"serial": 5, "rollout": ID}}


class Client(make.Client):
    """Nodes that give the answers that a test sets: to `status`, and to each action."""

    def __init__(self, status: Any, *deploys: NodeAnswer) -> None:
        super().__init__(None)
        self.status = status if callable(status) else lambda *_: status
        self.deploys = list(deploys)
        self.deployed: list[tuple[NodeName, Deploy]] = []

    async def ask(
        self, node: NodeName, action: str, args: Arguments, *, patience: float
    ) -> NodeAnswer:
        if isinstance(args, StatusRequest):
            found: NodeAnswer = self.status(node, args)
            return found
        assert isinstance(args, Deploy)
        self.deployed.append((node, args))
        if not self.deploys:
            raise UnavailableError("away", where="bus")
        return self.deploys.pop(0)


def deliveries_of(client: Client) -> Deliveries:
    return Deliveries(client, began=began([1], [1], delivery=RELEASE), delivery=RELEASE)


def one_group(client: Client) -> Deliveries:
    return Deliveries(client, began=began([1], delivery=RELEASE), delivery=RELEASE)


def test_nodes_that_cannot_accept_the_release_are_not_ready() -> None:
    def status(name: NodeName, args: StatusRequest) -> NodeAnswer:
        if name == node(1):
            return replied({"state": "idle"})
        if not args.may:
            return replied({"assignment": None})
        assert args.may == ("deploy:shop/tags/r7", "values")
        if name == node(2):
            return replied({"denied": {"values": "denied by line 3\x1b[2J"}})
        return replied({"denied": {}})

    found = run_simulated(deliveries_of(Client(status)).unready([node(1), node(2), node(3)]))
    assert found == {node(1): TOO_OLD, node(2): "denied by line 3\\x1b[2J"}


def test_staging_is_repeated_until_nodes_have_the_release() -> None:
    def status(name: NodeName, _: StatusRequest) -> NodeAnswer:
        return SILENCE if name == node(3) else replied({"assignment": {"serial": int(name[2])}})

    working, done = replied({"state": "working"}), replied({"state": "done"})
    client = Client(status, working, done, replied("no class shop"))
    work = deliveries_of(client).stage([node(1), node(3)], epoch=2)
    staged = run_simulated(work)
    assert staged.problems == {node(3): "did not answer"}
    assert list(staged.serials) == [node(1)]
    assert [args.action for _, args in client.deployed] == [DeployAction.STAGE] * 2
    assert {(args.serial, args.rollout and args.rollout.epoch) for _, args in client.deployed} == {
        (2, 2)
    }
    refused = run_simulated(deliveries_of(client).stage([node(2)], epoch=2))
    assert refused.problems == {node(2): "no class shop"}


def test_serials_from_before_a_resume_stay_in_force() -> None:
    """A controller that resumes the rollout elsewhere may not know the serial yet."""

    def status(name: NodeName, _: StatusRequest) -> NodeAnswer:
        other: dict[str, Json] = {"assignment": {"serial": 3, "rollout": ""}}
        return replied(OURS if name == node(1) else other)

    client = Client(status, replied({"state": "done"}), replied({"state": "done"}))
    staged = run_simulated(deliveries_of(client).stage([node(1), node(2)], epoch=2))
    assert (staged.serials, staged.problems) == ({node(1): 5, node(2): 4}, {})


def test_an_unreachable_node_or_bus_is_retried_and_then_reported() -> None:
    client = Client(replied({"assignment": None}), SILENCE, SILENCE, replied({"state": "done"}))
    assert run_simulated(deliveries_of(client).stage([node(1)], epoch=1)).problems == {}
    found = run_simulated(deliveries_of(client).stage([node(1)], epoch=1))
    assert found.problems == {node(1): "bus: away"}
    assert len(client.deployed) == 3 + deliveries.TRIES


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (replied({"state": "done"}), None),
        (SILENCE, NodeRunAnswer(problem="did not answer")),
        (
            replied("in force is shop/tags/r8"),
            NodeRunAnswer(
                end=run_ended(APPLY, NodeResult.FAILED, reason="in force is shop/tags/r8")
            ),
        ),
    ],
)
def test_a_node_applies_the_release_once_before_its_run(
    answer: NodeAnswer, expected: NodeRunAnswer | None
) -> None:
    client = Client(replied(OURS), answer)
    ours = one_group(client)

    async def moved() -> NodeRunAnswer | None:
        return await ours.move(APPLY, epoch=1, serial=5)

    assert run_simulated(moved()) == expected
    if expected is None:
        assert run_simulated(moved()) is None
        assert [args.action for _, args in client.deployed] == [DeployAction.APPLY]


@pytest.mark.parametrize(
    ("status", "taken"),
    [
        (OURS, True),
        ({"assignment": {"serial": 4, "rollout": ID}}, False),
        ({"assignment": {"serial": 5, "rollout": ""}}, False),
        ({"assignment": None}, False),
        ({"assignment": 3}, False),
    ],
)
def test_a_node_that_never_applied_the_release_needs_no_rollback(
    status: dict[str, Json], *, taken: bool
) -> None:
    """The controller requests the rollback first, so that accepted requests have ended by then."""
    client = Client(replied(status), replied({"state": "done"}))
    found = run_simulated(one_group(client).move(BACK, epoch=1, serial=5))
    ended = NodeRunAnswer(end=run_ended(BACK, NodeResult.NOT_REACHED))
    assert found == (None if taken else ended)
    assert [args.action for _, args in client.deployed] == [DeployAction.ROLL_BACK]


WELL = run_ended(BACK, outcome="changed", run="R1")


def rolled_back(release: str | None, run: str, ran: str) -> dict[str, Json]:
    rollback: Json = release and {"release": f"shop/tags/{release}"}
    return {"rollback": rollback, "last_run": {"run": run, "release": f"shop/tags/{ran}"}}


@pytest.mark.parametrize(
    ("status", "well"),
    [
        (rolled_back("r6", "R1", "r6"), True),
        (rolled_back("r6", "R2", "r6"), False),
        (rolled_back("r6", "R1", "r7"), False),
        (rolled_back(None, "R1", "r6"), False),
        ({"rollback": None, "last_run": None}, False),
        ({}, False),
    ],
)
def test_a_node_has_rolled_back_when_its_status_names_the_old_release(
    status: dict[str, Json], *, well: bool
) -> None:
    asked = run_simulated(one_group(Client(replied(status))).confirm(WELL, epoch=1, serial=5))
    assert asked.end is not None
    assert (asked.end.result is NodeResult.SUCCEEDED) == well
    assert bool(asked.end.reason) != well


@pytest.mark.parametrize(
    "work",
    [
        lambda ours: ours.confirm(WELL, epoch=1, serial=5),
        lambda ours: ours.move(BACK, epoch=1, serial=5),
    ],
)
def test_an_unresponsive_node_is_asked_again(work: Callable[[Deliveries], Any]) -> None:
    ours = one_group(Client(SILENCE, replied({"state": "done"})))
    assert run_simulated(work(ours)) == NodeRunAnswer(problem="did not answer")


NONCE = "9b2c3f70-0000-4000-8000-000000000000"
APPLIED = run_ended(NodeRun(1, node(1)), outcome="changed", run="R2")
CONFIRMED = replied({"state": "confirmed"})


def status(stage: str | None, **more: Any) -> dict[str, Json]:
    """Return the status of a node that took the release of this rollout."""
    told: dict[str, Json] = {"serial": 5, "rollout": ID, "stage": stage, "reason": "w", "nonce": ""}
    return {
        "assignment": {"serial": 5, "rollout": ID, "confirm": 90.0},
        "confirmation": None if stage is None else {**told, **more},
    }


def confirm(client: Client, end: NodeRunEnded = APPLIED) -> NodeRunAnswer:
    work = one_group(client).confirm(end, epoch=2, serial=5)
    asked: NodeRunAnswer = run_simulated(work)
    return asked


@pytest.mark.parametrize("fate", [NodeResult.SUCCEEDED, NodeResult.FAILED])
def test_the_caller_confirms_with_the_nonce_also_after_a_failed_run(fate: NodeResult) -> None:
    client = Client(replied(status("pending", nonce=NONCE)), CONFIRMED)
    end = run_ended(APPLIED.node_run, fate, outcome="failed", run="R2")
    assert confirm(client, end) == NodeRunAnswer(end=end)
    ((name, args),) = client.deployed
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
        {**status("pending", nonce=NONCE), "assignment": None},
    ],
)
def test_without_a_pending_confirmation_nothing_is_sent(told: dict[str, Json]) -> None:
    client = Client(replied(told))
    assert confirm(client) == NodeRunAnswer(end=APPLIED)
    assert client.deployed == []


@pytest.mark.parametrize("outcome", ["dropped", ""])
def test_without_a_run_the_node_is_not_asked(outcome: str) -> None:
    ended = run_ended(APPLIED.node_run, NodeResult.FAILED, outcome=outcome)
    assert confirm(Client(SILENCE), ended) == NodeRunAnswer(end=ended)


def test_an_interrupted_run_of_a_node_that_rolled_back_has_that_result() -> None:
    ended = run_ended(APPLIED.node_run, NodeResult.FAILED, outcome="interrupted")
    told = {**status("rolled back"), "rollback": ROLLED_BACK, "last_run": LAST}
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
    found = [run_simulated(ours.confirm(APPLIED, epoch=1, serial=5)) for _ in range(PATIENT)]
    assert [one.end for one in found] == [None] * (PATIENT - 1) + [APPLIED]


LAST: dict[str, Json] = {"release": "shop/tags/r6", "run": "R3"}
ROLLED_BACK: dict[str, Json] = {"release": "shop/tags/r6"}


@pytest.mark.parametrize(
    ("stage", "told", "fate"),
    [
        ("rolled back", {"rollback": ROLLED_BACK, "last_run": LAST}, NodeResult.ROLLED_BACK),
        ("rolled back", {"rollback": ROLLED_BACK, "last_run": {**LAST, "run": "R2"}}, None),
        (
            "rolled back",
            {"rollback": ROLLED_BACK, "last_run": {**LAST, "release": "shop/tags/r7"}},
            None,
        ),
        ("rolled back", {"rollback": None, "last_run": LAST}, None),
        ("rolled back", {}, None),
        (
            "rollback failed",
            {"rollback": ROLLED_BACK, "last_run": LAST},
            NodeResult.ROLLBACK_FAILED,
        ),
        ("superseded", {"rollback": ROLLED_BACK, "last_run": LAST}, NodeResult.FAILED),
    ],
)
def test_a_node_has_rolled_back_when_its_status_names_a_run_of_the_old_release(
    stage: str, told: dict[str, Json], fate: NodeResult | None
) -> None:
    asked = confirm(Client(replied({**status(stage, reason="no\x1b connection"), **told})))
    assert (asked.end.result if asked.end else None) == fate
    if asked.end is not None:
        assert "no\\x1b connection" in asked.end.reason
