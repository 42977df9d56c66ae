"""Replies of nodes that stage, apply and leave a release, and what a rollout concludes."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.names import NodeName, ReleasePath
from localpuppet.base.formats.values import Json
from localpuppet.fleet.requests.arguments import Deploy, DeployAction, StatusRequest
from localpuppet.fleet.requests.request import Arguments
from localpuppet.fleet.requests.request_client import TOO_OLD, NodeAnswer, RequestClient
from localpuppet.rollout import deliveries
from localpuppet.rollout.deliveries import Deliveries, NodeRunAnswer
from localpuppet.rollout.events import NodeResult, NodeRun, NodeRunEnded
from localpuppet.rollout.rollout_options import Delivery
from tests.doubles.simulated_loop import run_simulated
from tests.rollout.answering import replied
from tests.rollout.simulated import ID, began, node

RELEASE = Delivery(release=ReleasePath("shop/tags/r7"), classes={"shop": {"port": 81}})
SILENCE = NodeAnswer(reply=None, problem="did not answer")
APPLY, BACK = NodeRun(1, node(1)), NodeRun(2, node(1))
OURS: dict[str, Json] = {"assignment": {"serial": 5, "rollout": ID}}


class Client(RequestClient):
    """Nodes that give the answers that a test sets: to `status`, and to each action."""

    @property
    def caller(self) -> str:
        return "choria=alice"

    def __init__(self, status: Any, *deploys: NodeAnswer) -> None:
        self.status = status if callable(status) else lambda *_: status
        self.deploys = list(deploys)
        self.asked: list[tuple[NodeName, Deploy]] = []

    async def ask_all(
        self, names: Sequence[NodeName], action: str, args: Arguments, *, patience: float
    ) -> dict[str, NodeAnswer]:
        return {name: await self.ask(name, action, args, patience=patience) for name in names}

    async def ask(
        self, node: NodeName, action: str, args: Arguments, *, patience: float
    ) -> NodeAnswer:
        if isinstance(args, StatusRequest):
            found: NodeAnswer = self.status(node, args)
            return found
        assert isinstance(args, Deploy)
        self.asked.append((node, args))
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
    assert [args.action for _, args in client.asked] == [DeployAction.STAGE] * 2
    assert {(args.serial, args.rollout and args.rollout.epoch) for _, args in client.asked} == {
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
    assert len(client.asked) == 3 + deliveries.TRIES


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (replied({"state": "done"}), None),
        (SILENCE, NodeRunAnswer(problem="did not answer")),
        (
            replied("in force is shop/tags/r8"),
            NodeRunAnswer(
                end=NodeRunEnded(
                    node_run=APPLY, result=NodeResult.FAILED, reason="in force is shop/tags/r8"
                ),
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
        assert [args.action for _, args in client.asked] == [DeployAction.APPLY]


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
    ended = NodeRunAnswer(end=NodeRunEnded(node_run=BACK, result=NodeResult.NOT_REACHED))
    assert found == (None if taken else ended)
    assert [args.action for _, args in client.asked] == [DeployAction.ROLL_BACK]


WELL = NodeRunEnded(node_run=BACK, result=NodeResult.SUCCEEDED, outcome="changed", run="R1")


@pytest.mark.parametrize(
    ("status", "well"),
    [
        (
            {
                "rollback": {"release": "shop/tags/r6"},
                "last_run": {"run": "R1", "release": "shop/tags/r6"},
            },
            True,
        ),
        (
            {
                "rollback": {"release": "shop/tags/r6"},
                "last_run": {"run": "R2", "release": "shop/tags/r6"},
            },
            False,
        ),
        (
            {
                "rollback": {"release": "shop/tags/r6"},
                "last_run": {"run": "R1", "release": "shop/tags/r7"},
            },
            False,
        ),
        ({"rollback": None, "last_run": {"run": "R1", "release": "shop/tags/r6"}}, False),
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
