"""What replies and signed entries of nodes mean for a rollout, also those of hostile nodes."""

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from localpuppet.base.errors import BusyError, UnavailableError
from localpuppet.base.formats.values import Json
from localpuppet.fleet.bus import layout
from localpuppet.fleet.inventory.presence import OTHER_AGENT, announce
from localpuppet.fleet.requests.request import (
    Arguments,
    Disable,
    Enable,
    RolloutReference,
    RunOnce,
    StatusRequest,
    step_uuid,
)
from localpuppet.fleet.requests.request_client import NodeAnswer
from localpuppet.fleet.trust.signing import MessageKind, Signed, Verifier
from localpuppet.node.puppet.changes import PredictedChanges
from localpuppet.rollout.deliveries import NodeRunReport
from localpuppet.rollout.events import (
    ExportDependency,
    NodeResult,
    NodeRun,
    NodeRunEnded,
    RolloutBegan,
    RolloutTakenOver,
)
from localpuppet.rollout.resuming import heed_refusal
from localpuppet.rollout.rollout_nodes import STALE, UNTOLD, FleetNodes
from tests.doubles.identities import Person, person, trusting, verifier
from tests.doubles.memory_store import MemoryKeyValue, MemoryStore
from tests.doubles.ports import FakeClock
from tests.rollout.make import (
    AT,
    ID,
    OWNER,
    RELEASE,
    SALT,
    TURN,
    Client,
    approved,
    began,
    entry_of,
    fleet,
    foretold,
    memory_bus,
    node,
    replied,
    run_ended,
)


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
    ("told", "durations", "releases"),
    [
        ({"durations": [12, 9.5]}, (12.0, 9.5), {}),
        ({"durations": [1, 2, 3, 4, 5, 6]}, (1.0, 2.0, 3.0, 4.0, 5.0), {}),
        ({"durations": [-1, "5", None, True, 1e9, 7]}, (7.0,), {}),
        ({"durations": "12", "last_run": {"release": "shop/tags/r6"}}, None, {"shop/tags/r6": 1}),
        ({"durations": None, "last_run": {"release": 6}}, None, {}),
        ({"last_run": None}, None, {}),
    ],
)
async def test_how_long_runs_took_and_which_release_was_last(
    told: dict[str, Json],
    durations: tuple[float, ...] | None,
    releases: dict[str, int],
    tmp_path: Path,
) -> None:
    nodes, _ = fleet(replied({"denied": {}, "holds": [], **told}), tmp_path)
    await nodes.ready([node(1)])
    assert nodes.last_runs().durations == ({} if durations is None else {node(1): durations})
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
            run_ended(TURN, outcome="changed", run="r1"),
        ),
        (
            replied({"step": {"state": "over", "outcome": "failed", "run": 3, "reason": "a\nb"}}),
            run_ended(TURN, NodeResult.FAILED, outcome="failed", reason="a\\x0ab"),
        ),
        (replied({"step": {"state": "over", "outcome": None}}), run_ended(TURN, NodeResult.FAILED)),
        (replied("on hold: work"), run_ended(TURN, NodeResult.FAILED, reason="on hold: work")),
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
async def test_a_node_gets_entries_to_wait_for_and_returns_its_own(
    tmp_path: Path, *, new: bool
) -> None:
    """A node without an inventory cannot wait for entries, and is not asked to."""
    told = {"awaits_entries": True} if new else {}
    left: Json = entry_of(TURN).to_dict()
    over: Json = {"state": "over", "outcome": "changed"}
    answer = replied({"denied": {}, "holds": [], **told, "step": over, "entry": left})
    needs = (ExportDependency(producers=(node(2),), consumers=(node(1),)),)
    nodes, client = fleet(answer, tmp_path, first=replace(began([1, 2], [1]), needs=needs))
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
    answer = replied({"denied": {}, "holds": [], "step": over, "changes": changes})
    nodes, client = fleet(answer, tmp_path, first=approved(began([1], [1], tags=("t",))))
    assert await nodes.ready([node(1)]) == {node(1): UNTOLD}
    asked = await nodes.look(TURN, epoch=2, step=7, after=())
    args = client.asked[-1][1]
    assert isinstance(args, RunOnce)
    assert args.rollout is not None
    assert (args.noop, args.tags, args.changes_salt) == (True, ("t",), SALT)
    assert (args.rollout.epoch, args.rollout.step) == (2, 7)
    assert asked.end is not None
    assert (asked.end.predicted_changes, asked.end.reason) == (found, reason)
    assert asked.end.node_run == NodeRun(7, node(1))
    assert asked.end.result is (NodeResult.FAILED if reason else NodeResult.SUCCEEDED)


async def test_a_node_with_an_old_prediction_has_to_predict_again(tmp_path: Path) -> None:
    answer = replied({"accepted": False, "repeat_noop": True})
    nodes, client = fleet(answer, tmp_path, first=approved(began([1], [1])))
    asked = await nodes.start(TURN, epoch=1, serial=0, after=(), looked=7)
    args = client.asked[-1][1]
    assert isinstance(args, RunOnce)
    assert args.noop_step == 7
    assert (asked.look_again, asked.end) == (True, run_ended(TURN, NodeResult.FAILED, reason=STALE))


async def test_with_noop_a_node_reports_what_would_change(tmp_path: Path) -> None:
    over: Json = {"state": "over", "outcome": "unchanged"}
    status: dict[str, Json] = {"denied": {}, "holds": [], "reports_changes": True}
    answer = replied({**status, "step": over, "changes": TOLD})
    first = replace(began([1], [1], noop=True), salt=SALT)
    nodes, _ = fleet(answer, tmp_path, first=first)
    assert await nodes.ready([node(1)]) == {}
    asked = await nodes.start(TURN, epoch=1, serial=0, after=())
    assert asked.end == run_ended(TURN, outcome="unchanged", predicted_changes=foretold())


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


def status(number: int, *outcomes: Json, **more: Json) -> bytes:
    told = {"node": str(node(number)), "state": "idle", "outcomes": list(outcomes)}
    return json.dumps({"schema": 1, **told, **more}).encode()


def step(number: int, outcome: str, run: str | None = "r1", owner: str = OWNER) -> dict[str, Json]:
    uuid = step_uuid(OWNER, number)
    return {"sender": owner, "uuid": uuid, "timestamp": 1, "run": run, "outcome": outcome}


async def say(kv: MemoryKeyValue, number: int, who: Person, payload: bytes) -> None:
    await announce(kv, node(number), who.signer.sign(payload, MessageKind.PRESENCE))


async def first_report(nodes: FleetNodes) -> NodeRunReport:
    ends = nodes.ends()
    try:
        return await anext(ends)
    finally:
        await ends.aclose()


async def test_only_a_node_itself_reports_its_results(tmp_path: Path) -> None:
    """Messages that another member signed or that name another rollout are rejected."""
    mine, other = person(node(1)), person("z.example.com")
    kv, trusting = memory_bus(), verifier(tmp_path, mine, other)
    nodes = FleetNodes(kv, client=Client(None), verifier=trusting, began=began([1], [1]))

    def said(*owners: str, **more: Json) -> bytes:
        whole = [step(2, "changed", None, owner) for owner in owners]
        settled = [{key: one[key] for key in one if key != "run"} for one in whole]
        return status(1, 3, *settled, *whole, **more)

    await say(kv, 1, other, said(OWNER))
    await say(kv, 9, mine, said(OWNER))
    ends = nodes.ends()
    await say(kv, 1, mine, said("choria=bob", OWNER))
    end = run_ended(TURN, outcome="changed")
    assert await anext(ends) == (TURN, end)
    await say(kv, 1, mine, said(OWNER, other_agent_since="2026-11-22T11:00:00Z"))
    failed = replace(end, result=NodeResult.FAILED, reason=OTHER_AGENT)
    assert await anext(ends) == (TURN, failed)
    await ends.aclose()


WAITED_FOR = (ExportDependency(producers=(node(1),), consumers=(node(2),)),)


@pytest.mark.parametrize(
    ("first", "number", "outcome", "whole"),
    [
        (began([1], [1]), 2, "unchanged", True),
        (began([1], [1]), 3, "ended", True),
        (began([1], [1]), 2, "failed", False),
        (began([1], [1]), 2, "dropped", False),
        (began([1], [1], noop=True), 2, "unchanged", False),
        (began([1], [1], delivery=RELEASE), 2, "changed", False),
        (replace(began([1, 2], [1]), needs=WAITED_FOR), 2, "changed", False),
        (approved(began([1], [1])), 2, "changed", True),
    ],
)
async def test_a_node_whose_status_has_the_full_result_is_not_asked(
    first: RolloutBegan, number: int, outcome: str, tmp_path: Path, *, whole: bool
) -> None:
    """Its reply has the failure, the changes, its entry and the confirmation."""
    mine = person(node(1))
    kv = memory_bus()
    nodes = FleetNodes(kv, client=Client(None), verifier=verifier(tmp_path, mine), began=first)
    await say(kv, 1, mine, status(1, step(number, outcome)))
    news = await first_report(nodes)
    turn = NodeRun(number, node(1))
    end = run_ended(turn, outcome=outcome, run="r1")
    assert news == (turn, end if whole else None)


async def test_a_node_whose_agent_ends_is_asked_again(tmp_path: Path) -> None:
    kv = memory_bus()
    nodes = FleetNodes(kv, client=Client(None), verifier=verifier(tmp_path), began=began([1]))
    for number in (1, 9):
        await announce(kv, node(number), b"unknown key")
    ends = nodes.ends()
    following = asyncio.create_task(anext(ends))
    while not kv.store.watchers:
        await asyncio.sleep(0)
    kv.store.remove(f"{layout.PRESENCE}{node(9)}")
    kv.store.remove(f"{layout.PRESENCE}{node(1)}")
    assert await following == (NodeRun(1, node(1)), None)
    await ends.aclose()


class Counting(Verifier):
    """Counts what it verifies."""

    verified = 0

    def verify(self, token: bytes, kind: MessageKind) -> Signed:
        self.verified += 1
        return super().verify(token, kind)


async def test_statuses_without_a_step_of_the_rollout_are_not_verified(tmp_path: Path) -> None:
    people = [person(node(number)) for number in range(1, 9)]
    counting = Counting(trusting(tmp_path, *people), None, FakeClock())
    kv = memory_bus()
    first = began([*range(1, 9)])
    nodes = FleetNodes(kv, client=Client(None), verifier=counting, began=first)
    for number, one in enumerate(people, 1):
        over = [step(1, "changed", None)] if number == 8 else []
        holds: Json = [{"owner": OWNER, "reason": "rollout", "since": None, "until": None}]
        await say(kv, number, one, status(number, *over, holds=holds))
    await announce(kv, node(7), b"nonsense")
    assert (await first_report(nodes))[0] == NodeRun(1, node(8))
    assert counting.verified == 1


async def test_an_outage_is_noted_once_and_so_is_its_end(tmp_path: Path) -> None:
    store, notes = MemoryStore(now=lambda: 0.0), list[str]()
    nodes = FleetNodes(
        MemoryKeyValue(store),
        client=Client(None),
        verifier=verifier(tmp_path),
        began=began([1]),
        note=notes.append,
    )
    store.away = True
    following = asyncio.create_task(anext(nodes.ends()))
    while not notes:
        await asyncio.sleep(0)
    assert notes[0].startswith("cannot reach the bus; trying again: ")
    store.away = False
    while len(notes) < 2:
        await asyncio.sleep(0.01)
    assert notes[1:] == ["the bus is reachable again"]
    following.cancel()


async def test_the_changes_of_a_successful_prediction_are_requested(tmp_path: Path) -> None:
    mine = person(node(1))
    kv, client = memory_bus(), Client(replied({"step": {"state": "running"}}))
    first = approved(began([1], [1]))
    nodes = FleetNodes(kv, client=client, verifier=verifier(tmp_path, mine), began=first)
    await nodes.look(TURN, epoch=1, step=7, after=())
    await say(kv, 1, mine, status(1, step(7, "unchanged")))
    assert await first_report(nodes) == (NodeRun(7, node(1)), None)


MINE = Enable(rollout=RolloutReference(id=ID, epoch=2))
TAKEN = Enable(rollout=RolloutReference(id=ID, epoch=2, caller="choria=alice"))


class TakeoverRecorder:
    """Records the takeovers that it has to verify."""

    def __init__(self, *, believed: bool = True) -> None:
        self.believed = believed
        self.words: list[RolloutTakenOver] = []

    async def believes(self, found: RolloutTakenOver) -> bool:
        self.words.append(found)
        return self.believed


def spoken(epoch: Json = 3, by: Json = "choria=bob", since: Json = AT) -> NodeAnswer:
    return replied({"rollout_controller": {"epoch": epoch, "by": by, "since": since}})


async def heed(
    recorder: TakeoverRecorder,
    answer: NodeAnswer | None,
    args: Arguments = MINE,
    *,
    me: str = "choria=alice",
) -> Client:
    """Have the controller check the refusal of a node in epoch 2; return the client."""
    client = Client(answer)
    client.whose = me
    await heed_refusal(client, began([1]), recorder.believes, node(1), args)
    return client


@pytest.mark.parametrize(
    ("answer", "args", "me", "who"),
    [
        (spoken(), MINE, "choria=alice", "choria=bob"),
        (spoken(epoch=2), MINE, "choria=alice", "choria=bob"),
        (spoken(by=""), MINE, "choria=alice", "choria=alice"),  # from another machine
        (spoken(by=""), TAKEN, "choria=carol", "choria=alice"),
        (spoken(epoch=2), TAKEN, "choria=carol", "choria=bob"),
    ],
)
async def test_a_trusted_takeover_reported_by_a_node_ends_this_controller(
    answer: NodeAnswer, args: Arguments, me: str, who: str
) -> None:
    recorder = TakeoverRecorder()
    with pytest.raises(BusyError) as caught:
        await heed(recorder, answer, args, me=me)
    (word,) = recorder.words
    assert (word.caller, word.since) == (who, datetime(2026, 11, 22, 11, tzinfo=UTC))
    assert str(caught.value) == (
        f"rollout {ID} was taken over by {who} at 2026-11-22 11:00:00 UTC: later events are in"
        " that controller's journal"
    )


@pytest.mark.parametrize(
    ("answer", "args", "me"),
    [
        (spoken(epoch=1), MINE, "choria=alice"),
        (spoken(epoch=2, by=""), MINE, "choria=alice"),
        (spoken(epoch=2), TAKEN, "choria=bob"),
        (spoken(by="bob\x1b[2J"), MINE, "choria=alice"),
        (spoken(since="soon"), MINE, "choria=alice"),
        (spoken(epoch="3"), MINE, "choria=alice"),
        (replied({"rollout_controller": []}), MINE, "choria=alice"),
        (replied({"rollout_controller": {}}), MINE, "choria=alice"),
        (replied({"state": "idle"}), MINE, "choria=alice"),
        (replied("rollout: is an unknown argument"), MINE, "choria=alice"),
        (NodeAnswer(reply=None, problem="did not answer"), MINE, "choria=alice"),
        (None, MINE, "choria=alice"),
    ],
)
async def test_any_other_refusal_is_that_of_its_node(
    answer: NodeAnswer | None, args: Arguments, me: str
) -> None:
    recorder = TakeoverRecorder()
    client = await heed(recorder, answer, args, me=me)
    assert recorder.words == []
    ((action, asked),) = client.asked
    assert (action, isinstance(asked, StatusRequest)) == ("status", True)


async def test_a_rejected_report_of_a_takeover_ends_nothing() -> None:
    recorder = TakeoverRecorder(believed=False)
    await heed(recorder, spoken())
    assert len(recorder.words) == 1


async def test_replies_about_other_things_are_ignored() -> None:
    for args in (Enable(), StatusRequest(rollout=RolloutReference(id=ID, epoch=1))):
        assert (await heed(TakeoverRecorder(), spoken(), args)).asked == []
