"""A node on which a release was assigned, whose bus a test plays; its files are real."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from localpuppet.base.formats.names import ReleasePath, RolloutId, RunId
from localpuppet.base.formats.times import show_time
from localpuppet.fleet.agent.agent import RequestedRunResult, RunCompletion
from localpuppet.fleet.agent.confirmation import ConfirmationMemory, Stage
from localpuppet.fleet.agent.confirming import BusProbe, Confirming
from localpuppet.fleet.agent.retreat import RetreatOrder, ReturnRoute
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.inventory.presence import announce
from localpuppet.fleet.requests.arguments import Deploy, DeployAction, RolloutReference
from localpuppet.fleet.trust.signing import MessageKind
from localpuppet.node.enc.assignment import Assignment
from localpuppet.node.releases.ledger import Rollback
from localpuppet.node.runs.holds import Hold, Holds, rollout_owner
from localpuppet.node.runs.run import Outcome, RunState
from tests.doubles.identities import person, verifier
from tests.doubles.memory_store import MemoryKeyValue, MemoryStore
from tests.fleet.agent.test_agent import B, Rig
from tests.fleet.make import completed
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
    """A node on which a release was assigned."""

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
        """Put a finished run on record; return its id."""
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
        token = self.me.signer.sign(payload, MessageKind.PRESENCE)
        await announce(self.kv, B, token, ttl=1e6)

    async def look(self, seconds: float, every: float = 5.0) -> Stage | None:
        """Let time pass with a step every few seconds; return the stage of the confirmation."""
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
        told = self.confirming.report()
        assert told is not None
        args = Deploy(
            release=R2,
            action=DeployAction.CONFIRM,
            serial=3,
            rollout=RolloutReference(id=ID, epoch=1),
            nonce=more.pop("nonce", told["nonce"]),
        )
        return self.confirming.answer(more.pop("caller", ALICE), replace(args, **more))
