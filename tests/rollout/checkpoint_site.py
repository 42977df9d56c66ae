"""Machines of two people whose rollouts have checkpoints on one bus."""

from pathlib import Path

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.names import RolloutId, SignerName
from localpuppet.rollout.checkpoints import (
    PublishedCheckpoint,
    RolloutCheckpoint,
    RolloutCheckpoints,
)
from localpuppet.rollout.events import (
    Event,
    NodeRun,
    NodeRunsStarted,
)
from localpuppet.rollout.journal import Journals
from localpuppet.rollout.resuming import ResumedRollout, take_up
from localpuppet.rollout.state import RolloutState
from tests.doubles.identities import Person, person, verifier
from tests.doubles.memory_store import MemoryKeyValue, MemoryStore
from tests.rollout.simulated import ID, began, node

AT = "2026-11-22T11:00:00.000000Z"
FIRST = began([1, 2], [3])
STARTED = NodeRunsStarted(node_runs=(NodeRun(1, node(1)),))
KEY = f"/localpuppet/rollouts/alice/{ID}"
CALLER = "choria=alice"


def head(*events: Event, epoch: int = 1) -> RolloutCheckpoint:
    return RolloutCheckpoint(
        rollout=ID, epoch=epoch, events=tuple((AT, event) for event in (FIRST, *events))
    )


def kept(what: RolloutCheckpoint, revision: int) -> PublishedCheckpoint:
    return PublishedCheckpoint(head=what, revision=revision, signer=SignerName("alice"))


class Store(MemoryKeyValue):
    """A store that may refuse writes, or be unreachable."""

    problem: UnavailableError | None = None

    async def _reach(self) -> None:
        if self.problem is not None:
            raise self.problem


class Site:
    """A bus, Alice's key on two machines, and Bob."""

    def __init__(self, directory: Path) -> None:
        self.alice, self.bob, self.carol = person("alice"), person("bob"), person("carol")
        self.verifier = verifier(directory, self.alice, self.bob, self.carol)
        self.store = MemoryStore(now=lambda: 0.0)
        self.kv = Store(self.store)
        self.heads = self.heads_of(self.alice)
        self.here, self.there = Journals(directory / "here"), Journals(directory / "there")
        self.notes: list[str] = []
        self.may: set[str] = set()
        self.asked: list[RolloutState] = []
        self.refusal = ""

    def heads_of(self, who: Person) -> RolloutCheckpoints:
        return RolloutCheckpoints(
            self.kv,
            signer=who.signer,
            verifier=self.verifier,
            denied=self.denied,
            owner=SignerName("alice"),
        )

    def denied(self, name: SignerName) -> str:
        return "" if name in self.may else "denied by policy line 1"

    def begin(self, *events: Event) -> None:
        """Have a journal here that a killed process left."""
        journal = self.here.begin(FIRST, at=AT)
        for event in events:
            journal.append(event, at=AT)
        journal.close()

    async def problem(self, state: RolloutState) -> str:
        self.asked.append(state)
        return self.refusal

    async def take_up(
        self, journals: Journals, rollout: RolloutId | None = ID, who: Person | None = None
    ) -> ResumedRollout:
        found = await take_up(
            rollout,
            journals=journals,
            heads=self.heads if who is None else self.heads_of(who),
            problem=None if who is None else self.problem,
            note=self.notes.append,
        )
        found.journal.close()
        return found
