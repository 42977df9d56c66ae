"""What a node's replies mean for a rollout, also replies of hostile nodes."""

from dataclasses import replace
from pathlib import Path

import pytest

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.presence import OTHER_AGENT
from localpuppet.fleet.requests.arguments import StatusRequest
from localpuppet.fleet.requests.request import Disable, Enable, RunOnce
from localpuppet.fleet.requests.request_client import NodeAnswer
from localpuppet.node.puppet.changes import PredictedChanges
from localpuppet.rollout.events import ExportDependency, NodeResult, NodeRun, NodeRunEnded
from localpuppet.rollout.rollout_nodes import STALE, UNTOLD, FleetNodes
from tests.doubles.identities import verifier
from tests.doubles.memory_store import MemoryKeyValue, MemoryStore
from tests.rollout.answering import OWNER, TURN, Client, fleet, replied
from tests.rollout.foretold import SALT, approved, foretold
from tests.rollout.simulated import began, entry_of, node


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (replied({"denied": {}, "holds": []}), None),
        (replied({"denied": {}, "holds": [{"owner": OWNER, "reason": "r"}]}), None),
        (NodeAnswer(reply=None, problem="did not answer"), "did not answer"),
        (replied("denied by policy line 1"), "denied by policy line 1"),
        (replied({"denied": {"runonce": "line 3"}, "holds": []}), "line 3"),
        (
            replied({"denied": {}, "holds": [{"owner": "bob", "reason": "work\x1b[2J"}]}),
            "on hold: work\\x1b[2J (held by bob)",
        ),
        (replied({"denied": {}, "holds": [], "other_agent_since": "x"}), OTHER_AGENT),
        (replied({"holds": []}), "sent a malformed reply"),
        (replied({"denied": [], "holds": 3}), "sent a malformed reply"),
        (replied({"denied": {}, "holds": [3, {}]}), "on hold:  (held by )"),
        (
            replied({"denied": {}, "holds": [{"owner": "choria=bob/rollout/x", "reason": "r x"}]}),
            "on hold: r x (held by choria=bob)",
        ),
    ],
)
async def test_readiness_follows_from_the_reply_of_a_node(
    answer: NodeAnswer, why: str | None, tmp_path: Path
) -> None:
    nodes, _ = fleet(answer, tmp_path)
    assert await nodes.ready([node(1)]) == ({} if why is None else {node(1): why})


@pytest.mark.parametrize(
    ("told", "durations"),
    [
        ([12, 9.5], (12.0, 9.5)),
        ([1, 2, 3, 4, 5, 6], (1.0, 2.0, 3.0, 4.0, 5.0)),
        ([-1, "5", None, True, 1e9, 7], (7.0,)),
        ("12", None),
        (None, None),
    ],
)
async def test_how_long_runs_took(
    told: Json, durations: tuple[float, ...] | None, tmp_path: Path
) -> None:
    nodes, _ = fleet(replied({"denied": {}, "holds": [], "durations": told}), tmp_path)
    await nodes.ready([node(1)])
    assert nodes.last_runs().durations == ({} if durations is None else {node(1): durations})


@pytest.mark.parametrize(
    ("last_run", "releases"),
    [({"release": "shop/tags/r6"}, {"shop/tags/r6": 1}), ({"release": 6}, {}), (None, {})],
)
async def test_which_release_a_node_ran_last(
    last_run: Json, releases: dict[str, int], tmp_path: Path
) -> None:
    nodes, _ = fleet(replied({"denied": {}, "holds": [], "last_run": last_run}), tmp_path)
    await nodes.ready([node(1)])
    assert nodes.last_runs().releases == releases


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        (replied({"step": {"state": "waiting"}}), None),
        (replied({"step": {"state": "running", "outcome": "changed"}}), None),
        (replied({}), None),
        (replied({"step": [1]}), None),
        (
            replied({"step": {"state": "over", "outcome": "changed", "run": "r1", "reason": "x"}}),
            NodeRunEnded(node_run=TURN, result=NodeResult.SUCCEEDED, outcome="changed", run="r1"),
        ),
        (
            replied({"step": {"state": "over", "outcome": "failed", "run": 3, "reason": "a\nb"}}),
            NodeRunEnded(
                node_run=TURN, result=NodeResult.FAILED, outcome="failed", reason="a\\x0ab"
            ),
        ),
        (
            replied({"step": {"state": "over", "outcome": None}}),
            NodeRunEnded(node_run=TURN, result=NodeResult.FAILED),
        ),
        (
            replied("on hold: work"),
            NodeRunEnded(node_run=TURN, result=NodeResult.FAILED, reason="on hold: work"),
        ),
    ],
)
async def test_the_result_of_a_node_run_follows_from_the_reply(
    answer: NodeAnswer, end: NodeRunEnded | None, tmp_path: Path
) -> None:
    nodes, client = fleet(answer, tmp_path)
    asked = await nodes.start(TURN, epoch=4, serial=0, after=())
    assert not asked.problem
    assert asked.end == end
    ((action, args),) = client.asked
    assert action == "runonce"
    assert isinstance(args, RunOnce)
    assert (args.noop, args.tags) == (True, ("t",))
    assert args.rollout is not None
    assert (args.rollout.epoch, args.rollout.step) == (4, 2)


@pytest.mark.parametrize("new", [True, False])
async def test_a_node_gets_the_entries_to_wait_for_and_returns_its_own(
    tmp_path: Path, *, new: bool
) -> None:
    """A node without an inventory cannot wait for entries, and is not asked to."""
    told = {"awaits_entries": True} if new else {}
    left: Json = entry_of(TURN).to_dict()
    over: Json = {"state": "over", "outcome": "changed"}
    answer = replied({"denied": {}, "holds": [], **told, "step": over, "entry": left})
    client = Client(answer)
    needs = (ExportDependency(producers=(node(2),), consumers=(node(1),)),)
    nodes = FleetNodes(
        MemoryKeyValue(MemoryStore(now=lambda: 0.0)),
        client=client,
        verifier=verifier(tmp_path),
        began=replace(began([1, 2], [1]), needs=needs),
    )
    await nodes.ready([node(1)])
    after = (entry_of(NodeRun(1, node(2))),)
    asked = await nodes.start(TURN, epoch=1, serial=0, after=after)
    args = client.asked[-1][1]
    assert isinstance(args, RunOnce)
    assert args.awaited_entries == (after if new else ())
    assert asked.end is not None
    assert asked.end.entry == entry_of(TURN)
    others: Json = entry_of(NodeRun(2, node(2))).to_dict()
    client.answer = replied({"step": over, "entry": others})
    asked = await nodes.start(TURN, epoch=1, serial=0, after=())
    assert asked.end is not None
    assert asked.end.entry is None, "a node does not report for another"


TOLD: Json = {"release": "shop/tags/r7", "total": 0, "changes": []}


@pytest.mark.parametrize(
    ("changes", "found", "reason"),
    [
        (TOLD, foretold(), ""),
        ({"problem": "has no\nreport"}, None, "has no\\x0areport"),
        (
            {"release": 7, "total": 0, "changes": []},
            None,
            "changes.release: must be a string, not a number",
        ),
        (None, None, "changes: the key 'release' is missing"),
    ],
)
async def test_a_node_looks_before_it_runs(
    changes: Json, found: PredictedChanges | None, reason: str, tmp_path: Path
) -> None:
    over: Json = {"state": "over", "outcome": "unchanged"}
    client = Client(replied({"denied": {}, "holds": [], "step": over, "changes": changes}))
    nodes = FleetNodes(
        MemoryKeyValue(MemoryStore(now=lambda: 0.0)),
        client=client,
        verifier=verifier(tmp_path),
        began=approved(began([1], [1], tags=("t",))),
    )
    assert await nodes.ready([node(1)]) == {node(1): UNTOLD}
    asked = await nodes.look(TURN, epoch=2, step=7, after=())
    args = client.asked[-1][1]
    assert isinstance(args, RunOnce)
    assert args.rollout is not None
    assert (args.noop, args.tags, args.changes_salt) == (True, ("t",), SALT)
    assert (args.rollout.epoch, args.rollout.step) == (2, 7)
    assert asked.end is not None
    assert (asked.predicted_changes, asked.end.reason) == (found, reason)
    assert asked.end.node_run == NodeRun(7, node(1))
    assert asked.end.result is (NodeResult.FAILED if reason else NodeResult.SUCCEEDED)


async def test_a_node_with_an_old_prediction_has_to_predict_again(tmp_path: Path) -> None:
    client = Client(replied({"accepted": False, "repeat_noop": True}))
    nodes = FleetNodes(
        MemoryKeyValue(MemoryStore(now=lambda: 0.0)),
        client=client,
        verifier=verifier(tmp_path),
        began=approved(began([1], [1])),
    )
    asked = await nodes.start(TURN, epoch=1, serial=0, after=(), looked=7)
    args = client.asked[-1][1]
    assert isinstance(args, RunOnce)
    assert args.noop_step == 7
    assert (asked.look_again, asked.end) == (
        True,
        NodeRunEnded(node_run=TURN, result=NodeResult.FAILED, reason=STALE),
    )


async def test_with_noop_a_node_reports_what_would_change(tmp_path: Path) -> None:
    over: Json = {"state": "over", "outcome": "unchanged"}
    status: dict[str, Json] = {"denied": {}, "holds": [], "reports_changes": True}
    client = Client(replied({**status, "step": over, "changes": TOLD}))
    nodes = FleetNodes(
        MemoryKeyValue(MemoryStore(now=lambda: 0.0)),
        client=client,
        verifier=verifier(tmp_path),
        began=replace(began([1], [1], noop=True), salt=SALT),
    )
    assert await nodes.ready([node(1)]) == {}
    asked = await nodes.start(TURN, epoch=1, serial=0, after=())
    assert asked.end == NodeRunEnded(
        node_run=TURN,
        result=NodeResult.SUCCEEDED,
        outcome="unchanged",
        predicted_changes=foretold(),
    )


async def test_an_unreachable_bus_is_a_problem_of_each_node(tmp_path: Path) -> None:
    nodes, client = fleet(None, tmp_path)
    assert await nodes.hold([node(1)], epoch=1) == {node(1): "bus: away"}
    assert await nodes.release([node(1)], epoch=1) == {node(1): "bus: away"}
    asked = await nodes.start(TURN, epoch=1, serial=0, after=())
    assert (asked.end, asked.problem) == (None, "bus: away")
    with pytest.raises(UnavailableError):
        await nodes.ready([node(1)])
    hold = client.asked[0][1]
    assert isinstance(hold, Disable)
    assert hold.length == "600"


async def test_a_controller_that_took_over_acts_for_the_first_caller(tmp_path: Path) -> None:
    held: Json = {"owner": OWNER, "reason": "r"}
    answer = replied({"denied": {"takeover": "denied by policy line 1"}, "holds": [held]})
    nodes, client = fleet(answer, tmp_path, caller="choria=bob")
    assert await nodes.ready([node(1)]) == {node(1): "denied by policy line 1"}
    await nodes.hold([node(1)], epoch=2)
    await nodes.release([node(1)], epoch=2)
    await nodes.start(TURN, epoch=2, serial=0, after=())
    (_, status), *others = client.asked
    assert isinstance(status, StatusRequest)
    assert "takeover" in status.may
    for _, args in others:
        assert isinstance(args, Disable | Enable | RunOnce)
        assert args.rollout is not None
        assert (args.rollout.caller, args.rollout.epoch) == ("choria=alice", 2)
    assert len(others) == 3
