"""What the signed entries of nodes on the bus mean for a rollout."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.formats.names import ReleasePath
from localpuppet.fleet.bus import layout
from localpuppet.fleet.inventory.presence import OTHER_AGENT, announce
from localpuppet.fleet.requests.arguments import step_uuid
from localpuppet.fleet.trust.signing import MessageKind, Signed, Verifier
from localpuppet.rollout.deliveries import NodeRunReport
from localpuppet.rollout.events import (
    ExportDependency,
    NodeResult,
    NodeRun,
    NodeRunEnded,
    RolloutBegan,
)
from localpuppet.rollout.rollout_nodes import FleetNodes
from localpuppet.rollout.rollout_options import Delivery
from tests.doubles.identities import person, trusting, verifier
from tests.doubles.memory_store import MemoryKeyValue, MemoryStore
from tests.doubles.ports import FakeClock
from tests.rollout.answering import OWNER, TURN, Client, replied
from tests.rollout.foretold import approved
from tests.rollout.simulated import began, node


async def test_only_a_node_itself_reports_its_results(tmp_path: Path) -> None:
    """Messages that another member signed or that name another rollout are rejected."""
    mine, other = person(node(1)), person("z.example.com")
    store = MemoryStore(now=lambda: 0.0)
    kv = MemoryKeyValue(store)
    nodes = FleetNodes(
        kv,
        client=Client(None),
        verifier=verifier(tmp_path, mine, other),
        began=began([1], [1]),
    )

    def said(*owners: str) -> bytes:
        settled: list[Any] = [
            {"sender": owner, "uuid": step_uuid(OWNER, 2), "timestamp": 1, "outcome": "changed"}
            for owner in owners
        ]
        whole = [one | {"run": None} for one in settled]
        told = {"node": str(node(1)), "state": "idle", "outcomes": [3, *settled, *whole]}
        return json.dumps({"schema": 1, **told}).encode()

    await announce(kv, node(1), other.signer.sign(said(OWNER), MessageKind.PRESENCE))
    await announce(kv, node(9), mine.signer.sign(said(OWNER), MessageKind.PRESENCE))
    ends = nodes.ends()
    await announce(kv, node(1), mine.signer.sign(said("choria=bob", OWNER), MessageKind.PRESENCE))
    end = NodeRunEnded(node_run=TURN, result=NodeResult.SUCCEEDED, outcome="changed")
    assert await anext(ends) == NodeRunReport(node_run=TURN, end=end)
    copied = json.loads(said(OWNER)) | {"other_agent_since": "2026-11-22T11:00:00Z"}
    token = mine.signer.sign(json.dumps(copied).encode(), MessageKind.PRESENCE)
    await announce(kv, node(1), token)
    failed = replace(end, result=NodeResult.FAILED, reason=OTHER_AGENT)
    assert await anext(ends) == NodeRunReport(node_run=TURN, end=failed)
    await ends.aclose()


WAITED_FOR = (ExportDependency(producers=(node(1),), consumers=(node(2),)),)
RELEASE = Delivery(release=ReleasePath("shop/tags/r7"))


@pytest.mark.parametrize(
    ("first", "step", "outcome", "whole"),
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
    first: RolloutBegan, step: int, outcome: str, tmp_path: Path, *, whole: bool
) -> None:
    """Its reply has the failure, the changes, its entry and the confirmation."""
    mine = person(node(1))
    kv = MemoryKeyValue(MemoryStore(now=lambda: 0.0))
    nodes = FleetNodes(kv, client=Client(None), verifier=verifier(tmp_path, mine), began=first)
    told = {"sender": OWNER, "uuid": step_uuid(OWNER, step), "timestamp": 1, "run": "r1"}
    said = {"node": str(node(1)), "state": "idle", "outcomes": [{**told, "outcome": outcome}]}
    payload = json.dumps({"schema": 1, **said}).encode()
    await announce(kv, node(1), mine.signer.sign(payload, MessageKind.PRESENCE))
    ends = nodes.ends()
    news = await anext(ends)
    await ends.aclose()
    turn = NodeRun(step, node(1))
    end = NodeRunEnded(node_run=turn, result=NodeResult.SUCCEEDED, outcome=outcome, run="r1")
    assert news == NodeRunReport(node_run=turn, end=end if whole else None)


async def test_a_node_whose_agent_ends_is_asked_again(tmp_path: Path) -> None:
    kv = MemoryKeyValue(MemoryStore(now=lambda: 0.0))
    nodes = FleetNodes(kv, client=Client(None), verifier=verifier(tmp_path), began=began([1]))
    for number in (1, 9):
        await announce(kv, node(number), b"unknown key")
    ends = nodes.ends()
    following = asyncio.create_task(anext(ends))
    while not kv.store.watchers:
        await asyncio.sleep(0)
    kv.store.remove(f"{layout.PRESENCE}{node(9)}")
    kv.store.remove(f"{layout.PRESENCE}{node(1)}")
    assert await following == NodeRunReport(node_run=NodeRun(1, node(1)))
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
    kv = MemoryKeyValue(MemoryStore(now=lambda: 0.0))
    first = began([*range(1, 9)])
    nodes = FleetNodes(kv, client=Client(None), verifier=counting, began=first)
    for number, one in enumerate(people, 1):
        told = {"sender": OWNER, "uuid": step_uuid(OWNER, 1), "timestamp": 1, "run": None}
        over = [{**told, "outcome": "changed"}] if number == 8 else []
        holds = [{"owner": OWNER, "reason": "rollout", "since": None, "until": None}]
        said = {"node": str(node(number)), "state": "idle", "outcomes": over, "holds": holds}
        payload = json.dumps({"schema": 1, **said}).encode()
        token = one.signer.sign(payload, MessageKind.PRESENCE)
        await announce(kv, node(number), token if number != 7 else b"nonsense")
    ends = nodes.ends()
    assert (await anext(ends)).node_run == NodeRun(1, node(8))
    await ends.aclose()
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
    kv = MemoryKeyValue(MemoryStore(now=lambda: 0.0))
    nodes = FleetNodes(
        kv,
        client=Client(replied({"step": {"state": "running"}})),
        verifier=verifier(tmp_path, mine),
        began=approved(began([1], [1])),
    )
    await nodes.look(TURN, epoch=1, step=7, after=())
    told = {"sender": OWNER, "uuid": step_uuid(OWNER, 7), "timestamp": 1, "run": "r1"}
    said = {"node": str(node(1)), "state": "idle", "outcomes": [{**told, "outcome": "unchanged"}]}
    payload = json.dumps({"schema": 1, **said}).encode()
    await announce(kv, node(1), mine.signer.sign(payload, MessageKind.PRESENCE))
    ends = nodes.ends()
    assert await anext(ends) == NodeRunReport(node_run=NodeRun(7, node(1)))
    await ends.aclose()
