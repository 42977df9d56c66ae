"""The confirmation of a release, and the way back, on a node whose bus a test plays.

Files, holds, records and inbox are real.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.formats.names import ReleasePath, RolloutId, RunId
from localpuppet.base.formats.times import show_time
from localpuppet.fleet.agent.agent import RequestedRunResult, RunCompletion
from localpuppet.fleet.agent.confirmation import (
    ConfirmationMemory,
    RetreatOrder,
    ReturnRoute,
    Stage,
)
from localpuppet.fleet.agent.confirming import DONE, BusProbe, Confirming
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.inventory.presence import announce
from localpuppet.fleet.requests.request import Deploy, DeployAction, RolloutReference
from localpuppet.fleet.trust.signing import MessageKind
from localpuppet.node.enc.assignment import Assignment
from localpuppet.node.releases.release_records import Rollback
from localpuppet.node.runs.holds import Hold, Holds, rollout_owner
from localpuppet.node.runs.run import Outcome, RunState
from tests.doubles.identities import person, verifier
from tests.doubles.memory_store import MemoryKeyValue, MemoryStore
from tests.fleet.agent.test_agent import B, Rig
from tests.fleet.make import busy, completed, there
from tests.rigs.recorded import Recorded

R1, R2 = ReleasePath("app/tags/r1"), ReleasePath("app/tags/r2")
ALICE = "choria=alice"
ID = RolloutId("20261122T110000Z-0a1b")
OWNER = rollout_owner(ALICE, ID)
WITHIN = 90.0


@dataclass
class Network:
    """The network between a node and the servers of its bus.

    Attributes:
        answers: Whether the server answers a new connection.
        up: Whether the store serves over the connection that the agent has.
    """

    answers: bool = True
    up: bool = True
    looked: int = 0

    async def look(self) -> bool:
        self.looked += 1
        return self.answers


class Node:
    def __init__(self, directory: Path, *, rollout: str = "") -> None:
        self.rig = Rig(directory)
        self.clock = self.rig.clock
        self.me = person(str(B))
        self.recorded = Recorded(directory)
        self.recorded.clock = self.clock
        self.holds = Holds(directory / "holds", None, self.clock)
        self.network = Network()
        self.kv = MemoryKeyValue(MemoryStore(now=self.clock.monotonic))
        self.memory = ConfirmationMemory(directory / "state")
        self.retreats: list[RetreatOrder] = []
        self.end = completed()
        self.rollback: Rollback | None = None
        self.late: list[bool] = []
        self.command: Callable[[], bool] | None = None
        self.assignment: Assignment | None = Assignment(
            release=R2,
            serial=3,
            by=ALICE,
            at=show_time(self.clock.now()),
            rollout=rollout,
            after="",
            confirm=WITHIN,
        )
        self.directory = directory
        (directory / "me").mkdir(exist_ok=True)
        self.confirming = self.agent_starts()

    def agent_starts(self, boot: str = "a") -> Confirming:
        """Return the service of a new agent, which reads the state on disk."""
        self.confirming = Confirming(
            self.memory,
            boot=boot,
            late=self.late.append,
            command=None if self.command is None else self._ask,
            looking=BusProbe(
                B,
                store=self._store,
                verifier=verifier(self.directory / "me", self.me),
                answers=self.network.look,
            ),
            back=ReturnRoute(
                self,
                agent=self.rig.agent,
                inbox=self.rig.inbox,
                records=self.recorded.records,
                holds=lambda: self.holds,
                assigned=lambda: self.assignment,
                rollback=lambda: self.rollback,
                clock=self.clock,
            ),
            log=self.rig.log,
        )
        return self.confirming

    async def _ask(self) -> bool:
        assert self.command is not None
        return self.command()

    async def _store(self) -> KeyValue:
        self.kv.store.away = not self.network.up
        return self.kv

    async def run(self, order: RetreatOrder) -> RunCompletion:
        """Be the child that puts the rollback in force."""
        self.retreats.append(order)
        if self.end.result is RequestedRunResult.OVER:
            self.rollback = Rollback(
                release=R1,
                run=RunId("20261120T140000Z-0000"),
                node_document={},
                input_sha256="",
                user=order.because,
                since=show_time(self.clock.now()),
                input_release=R2,
                serial=3,
            )
        return self.end

    def ran(self, app: str = R2, *, serial: int = 3, **more: Any) -> str:
        self.clock.advance(1)
        run = self.recorded.records.create(self.clock)
        assigned = {"serial": serial} if serial else {}
        run.open(
            self.recorded.request(run, release=app, assignment=assigned),
            self.recorded.status(run, release=app),
        )
        fields = {"state": RunState.FINISHED, "outcome": Outcome.CHANGED, **more}
        run.close(self.recorded.status(run, release=app, **fields))
        return run.id

    async def tell(self) -> None:
        """Have the presence on the bus, as the agent does when something changed."""
        self.kv.store.away = False
        status = {"node": str(B), "state": "idle", "confirmation": self.confirming.report()}
        payload = json.dumps({"schema": 1, **status}).encode()
        await announce(self.kv, B, self.me.signer.sign(payload, MessageKind.PRESENCE), ttl=1e6)

    async def look(self, seconds: float, every: float = 5.0) -> Stage | None:
        for _ in range(int(seconds / every)):
            self.clock.advance(every)
            await self.confirming.step()
        found = self.memory.read()
        return None if found is None else found.stage

    def hold(self) -> None:
        now = show_time(self.clock.now())
        self.holds.add(Hold(owner=OWNER, reason="rollout", since=now, until=None))

    def confirms(self, **more: Any) -> Any:
        """Confirm as the rollout's caller does; return the node's reply."""
        told = there(self.confirming.report())
        args = Deploy(
            release=R2,
            action=DeployAction.CONFIRM,
            serial=3,
            rollout=RolloutReference(id=ID, epoch=1),
            nonce=more.pop("nonce", told["nonce"]),
        )
        return self.confirming.answer(more.pop("caller", ALICE), replace(args, **more))


@pytest.fixture
def by_hand(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
def rolled(tmp_path: Path) -> Node:
    node = Node(tmp_path, rollout=ID)
    node.hold()
    return node


async def test_without_a_rollout_the_node_s_own_message_confirms_the_release(by_hand: Node) -> None:
    assert await by_hand.look(10) is None  # nothing has run
    by_hand.ran(noop=True)
    by_hand.ran(serial=2)
    assert await by_hand.look(10) is None
    by_hand.ran()
    await by_hand.tell()
    assert await by_hand.look(5) is Stage.PENDING  # the message on the bus is older than the nonce
    await by_hand.tell()
    assert await by_hand.look(5) is Stage.CONFIRMED
    since = there(by_hand.memory.read()).since.at
    run = {"run": by_hand.recorded.records.ids()[0], "since": since, "within": WITHIN}
    assigned = {"serial": 3, "release": R2, "rollout": "", "stage": "confirmed"}
    assert by_hand.confirming.report() == {**run, **assigned, "reason": "", "nonce": ""}
    looked = by_hand.network.looked
    by_hand.network.answers = by_hand.network.up = False
    by_hand.ran()
    assert await by_hand.look(1000) is Stage.CONFIRMED  # it is for the first run, and once
    assert by_hand.network.looked == looked


async def test_a_rollout_is_confirmed_by_its_caller_with_the_nonce(rolled: Node) -> None:
    rolled.ran(outcome=Outcome.FAILED)  # also a run that failed can have cut the node off
    assert await rolled.look(5) is Stage.PENDING
    other = RolloutReference(id=RolloutId("20261122T110000Z-ffff"), epoch=1)
    for wrong in ({"caller": "choria=mallory"}, {"serial": 2}, {"release": R1}, {"rollout": other}):
        assert "no release of this rollout" in rolled.confirms(**wrong)
    assert "nonce differs" in rolled.confirms(nonce="9b2c3f70-0000-4000-8000-000000000000")
    taken_over = RolloutReference(id=ID, epoch=2, caller=ALICE)
    assert rolled.confirms(caller="choria=bob", rollout=taken_over) == DONE
    assert await rolled.look(1000) is Stage.CONFIRMED
    nonce = there(rolled.memory.read()).nonce
    assert rolled.confirms(nonce=nonce) == DONE  # the reply was lost, and it is asked again


async def test_an_old_connection_confirms_nothing(rolled: Node) -> None:
    """A firewall that drops only new connections is found out before the old one ends."""
    rolled.network.answers = False
    rolled.ran()
    assert await rolled.look(50) is Stage.PENDING
    assert there(rolled.confirming.report())["nonce"] == ""
    nonce = there(rolled.memory.read()).nonce
    assert "new connection" in rolled.confirms(nonce=nonce)
    assert await rolled.look(WITHIN) is Stage.PENDING
    assert len(rolled.holds.active()) == 1
    rolled.network.up = False
    assert await rolled.look(20) is Stage.PENDING
    assert await rolled.look(5) is Stage.ROLLING_BACK


@pytest.mark.parametrize("rollout", ["", ID])
async def test_a_server_that_does_not_serve_causes_no_rollback(
    tmp_path: Path, rollout: str
) -> None:
    node = Node(tmp_path, rollout=rollout)
    node.network.up = False
    node.ran()
    await node.confirming.step()
    assert await node.look(WITHIN - 5) is Stage.PENDING
    assert (node.late, node.holds.active()) == ([], [])
    assert await node.look(3 * 3600, every=300.0) is Stage.PENDING
    (hold,) = node.holds.active()
    assert hold.owner == (OWNER if rollout else f"{ALICE}/confirmation")
    reason = "the bus does not answer any node, so this node is not cut off"
    assert f"app/tags/r2 is not confirmed: {reason}" in hold.reason
    assert node.late == [True]
    assert node.rig.log.text.count("is not cut off; waiting") == 1
    assert there(node.confirming.report())["reason"] == reason
    node.network.up = True
    await node.tell()
    if rollout:
        assert node.confirms() == DONE
    else:
        assert await node.look(5) is Stage.CONFIRMED
        assert node.holds.active() == []
    assert node.late == [True, False]
    assert node.retreats == []


async def test_if_its_rollout_is_gone_the_node_confirms_the_release_itself(rolled: Node) -> None:
    rolled.ran()
    await rolled.look(10)
    await rolled.tell()
    assert await rolled.look(WITHIN + 600) is Stage.PENDING
    assert "the bus answers, but rollout" in rolled.rig.log.text
    rolled.holds.remove(OWNER)
    assert await rolled.look(5) is Stage.CONFIRMED
    assert "by this node, because" in rolled.rig.log.text


async def test_a_node_that_is_cut_off_rolls_back_by_itself(by_hand: Node) -> None:
    by_hand.ran(R1, serial=0)
    by_hand.network.answers = by_hand.network.up = False
    by_hand.ran()
    await by_hand.confirming.step()
    assert await by_hand.look(WITHIN - 5) is Stage.PENDING
    assert await by_hand.look(5) is Stage.ROLLING_BACK
    assert by_hand.late == [True]
    await by_hand.look(5)
    (retreat,) = by_hand.retreats
    assert retreat.left == by_hand.assignment
    assert retreat.because == "this node: no connection to the bus for 1m 30s"
    assert str(by_hand.rig.agent.waiting) == "confirmation"
    by_hand.network.answers = True  # it is decided: what is half done is not left half done
    assert await by_hand.look(60) is Stage.ROLLING_BACK
    by_hand.ran(R1, serial=0)
    assert await by_hand.look(5) is Stage.ROLLED_BACK
    assert there(by_hand.confirming.report())["stage"] == "rolled back"
    assert len(by_hand.retreats) == 1


async def test_a_store_that_is_locked_is_waited_for(by_hand: Node) -> None:
    by_hand.network.answers = by_hand.network.up = False
    by_hand.ran()
    by_hand.end = busy("gc")
    assert await by_hand.look(WITHIN + 30) is Stage.ROLLING_BACK
    by_hand.end = completed()
    await by_hand.look(5)
    assert by_hand.rig.agent.waiting is not None


@pytest.mark.parametrize("boot", ["a", "b"])
async def test_it_is_pending_over_a_kill_and_a_reboot(by_hand: Node, boot: str) -> None:
    by_hand.network.answers = by_hand.network.up = False
    by_hand.ran()
    await by_hand.look(60)
    before = by_hand.memory.read()
    by_hand.clock.advance(1000)  # no agent was running
    by_hand.agent_starts(boot)
    assert await by_hand.look(20) is Stage.PENDING  # a network takes its time
    after = by_hand.memory.read()
    assert before is not None
    assert after is not None
    assert after.nonce == before.nonce
    assert await by_hand.look(5) is Stage.ROLLING_BACK
    by_hand.agent_starts(boot)
    await by_hand.look(5)
    assert len(by_hand.retreats) == 1
    by_hand.agent_starts(boot)
    await by_hand.look(5)
    assert len(by_hand.retreats) == 2  # a repeated rollback has the same effect


class KilledHolds(Holds):
    def remove(self, owner: str | None) -> list[Hold]:
        raise SystemExit


async def test_a_hold_of_a_killed_agent_does_not_stop_its_own_rollback(by_hand: Node) -> None:
    by_hand.network.answers = False
    by_hand.ran()
    await by_hand.look(WITHIN + 15)  # an old connection still works: the node waits, on hold
    by_hand.network.up = False
    holds = by_hand.holds
    by_hand.holds = KilledHolds(by_hand.directory / "holds", None, by_hand.clock)
    with pytest.raises(SystemExit):
        await by_hand.look(60)
    by_hand.holds = holds
    assert len(by_hand.holds.active()) == 1
    by_hand.agent_starts()
    assert await by_hand.look(5) is Stage.ROLLING_BACK
    assert by_hand.holds.active() == []


@pytest.mark.parametrize("boot", ["a", "b"])
async def test_servers_that_answered_and_vanish_cause_no_rollback(by_hand: Node, boot: str) -> None:
    by_hand.network.up = False
    by_hand.ran()
    await by_hand.confirming.step()
    by_hand.network.answers = False
    by_hand.agent_starts(boot)
    assert await by_hand.look(3600, every=300) is Stage.PENDING
    assert len(by_hand.holds.active()) == 1


@pytest.mark.parametrize("connected", [True, False])
async def test_a_rollback_asks_the_command_first(tmp_path: Path, *, connected: bool) -> None:
    node = Node(tmp_path)
    asked: list[float] = []

    def command() -> bool:
        asked.append(node.clock.monotonic())
        return connected

    node.command = command
    node.agent_starts()
    node.network.answers = node.network.up = False
    node.ran()
    stage = await node.look(WITHIN + 5)
    assert (len(asked), stage) == (1, Stage.PENDING if connected else Stage.ROLLING_BACK)
    if connected:
        assert len(node.holds.active()) == 1
        assert there(node.confirming.report())["nonce"] == ""
        await node.look(10 * WITHIN, every=30)
        assert len(asked) == 1


async def test_a_command_may_open_the_way_again(by_hand: Node) -> None:
    def mend() -> bool:
        by_hand.network.answers = True
        return False

    by_hand.command = mend
    by_hand.agent_starts()
    by_hand.network.answers = by_hand.network.up = False
    by_hand.ran()
    assert await by_hand.look(WITHIN + 30) is Stage.PENDING


async def test_a_rollback_by_an_operator_supersedes_the_confirmation(rolled: Node) -> None:
    rolled.network.up = False
    rolled.ran()
    await rolled.look(WITHIN + 30)
    await rolled.run(RetreatOrder(left=rolled.assignment, because="alice"))  # type: ignore[arg-type]
    assert await rolled.look(5) is Stage.SUPERSEDED
    assert there(rolled.confirming.report())["reason"] == "rolled back by alice"
    assert rolled.assignment is not None
    rolled.assignment = replace(rolled.assignment, serial=4, after=rolled.recorded.records.ids()[0])
    assert await rolled.look(5) is Stage.SUPERSEDED
    rolled.assignment = replace(rolled.assignment, serial=3, by="choria=bob")  # serials restarted
    assert rolled.confirms(nonce=there(rolled.memory.read()).nonce) == (
        "no release of this rollout waits for a confirmation on this node"
    )
    rolled.assignment = replace(rolled.assignment, serial=4, by=ALICE)
    rolled.ran(serial=4)
    assert await rolled.look(5) is Stage.PENDING


@pytest.mark.parametrize("confirm", [WITHIN, 0.0])
async def test_another_release_ends_the_earlier_hold(by_hand: Node, confirm: float) -> None:
    by_hand.network.up = False
    by_hand.ran()
    await by_hand.look(WITHIN + 30)
    assert (len(by_hand.holds.active()), by_hand.late) == (1, [True])
    assert by_hand.assignment is not None
    newest = by_hand.recorded.records.ids()[0]
    by_hand.assignment = replace(by_hand.assignment, serial=4, after=newest, confirm=confirm)
    assert await by_hand.look(5) is Stage.SUPERSEDED
    assert (by_hand.holds.active(), by_hand.late) == ([], [True, False])


async def test_an_assignment_without_confirmation_is_not_probed(by_hand: Node) -> None:
    assert by_hand.assignment is not None
    by_hand.assignment = replace(by_hand.assignment, confirm=0.0)
    by_hand.ran()
    assert await by_hand.look(100) is None
    assert by_hand.network.looked == 0
    assert by_hand.confirming.report() is None


async def test_a_damaged_file_is_logged_once_and_does_not_stop_the_agent(by_hand: Node) -> None:
    (by_hand.directory / "state").mkdir()
    (by_hand.directory / "state" / "confirmation.json").write_text("{")
    for _ in range(3):
        assert await by_hand.confirming.step() == 30.0
    assert by_hand.rig.log.text.count("the confirmation of a release") == 1
    assert by_hand.confirming.report() is None


async def test_an_agent_that_ends_does_not_wait_for_a_look(by_hand: Node) -> None:
    by_hand.ran()
    leave, looking = asyncio.Event(), asyncio.Event()

    async def hangs() -> bool:
        looking.set()
        return await asyncio.Event().wait()

    by_hand.network.look = hangs  # type: ignore[method-assign]
    by_hand.agent_starts()
    keeping = asyncio.create_task(by_hand.confirming.keep(leave))
    await looking.wait()
    leave.set()
    await keeping


async def test_it_looks_when_something_has_changed_and_again_and_again(by_hand: Node) -> None:
    leave = asyncio.Event()
    keeping = asyncio.create_task(by_hand.confirming.keep(leave))
    while not by_hand.network.looked:
        await asyncio.sleep(0)
    by_hand.ran()
    by_hand.rig.agent.recheck()
    while "app/tags/r2: confirmed" not in by_hand.rig.log.text:
        await by_hand.tell()
        await asyncio.sleep(0)
    leave.set()
    await keeping
