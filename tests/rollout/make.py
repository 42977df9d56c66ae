"""Builders of rollouts: events, simulated nodes, nodes with fixed replies, checkpoints."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.names import NodeName, ReleasePath, RolloutId, SignerName
from localpuppet.base.formats.values import Json
from localpuppet.fleet.agent.rollout_steps import FRESH
from localpuppet.fleet.inventory.outbox import AwaitedEntry
from localpuppet.fleet.requests.request import Arguments, NodeReply
from localpuppet.fleet.requests.request_client import NodeAnswer, RequestClient
from localpuppet.fleet.trust.signing import MessageKind
from localpuppet.node.puppet.changes import PredictedChanges, PropertyChange
from localpuppet.rollout.checking import CheckRunner, Probing
from localpuppet.rollout.checkpoints import (
    PublishedCheckpoint,
    RolloutCheckpoint,
    RolloutCheckpoints,
)
from localpuppet.rollout.commands import EventRecorder, RolloutCommand, SentCommand, identify_pause
from localpuppet.rollout.deliveries import NodeRunAnswer, NodeRunReport, Problems, StagingResult
from localpuppet.rollout.events import (
    Event,
    LastRunsReported,
    NodeResult,
    NodeRun,
    NodeRunEnded,
    NodeRunsStarted,
    RolloutBegan,
    RolloutEnded,
    RolloutEnding,
    RolloutStopped,
)
from localpuppet.rollout.executing import Execution
from localpuppet.rollout.journal import Journals
from localpuppet.rollout.resuming import ResumedRollout, take_up
from localpuppet.rollout.rollout_nodes import FleetNodes
from localpuppet.rollout.rollout_options import Approval, Delivery, RolloutOptions
from localpuppet.rollout.rollout_report import RolloutReport
from localpuppet.rollout.site import Check
from localpuppet.rollout.state import RolloutState
from tests.doubles.identities import Person, person, verifier
from tests.doubles.memory_store import MemoryKeyValue, MemoryStore
from tests.doubles.simulated_loop import run_simulated

ID = RolloutId("20261122T110000Z-0123")
AT = "2026-11-22T11:00:00.000000Z"
RELEASE = Delivery(release=ReleasePath("shop/tags/r7"))


# Two hours before clocks in Berlin are set back.
BEGINNING = datetime(2026, 10, 24, 23, tzinfo=UTC)


class Killed(BaseException):
    """The process ends here, as by kill -9."""


def node(number: int) -> NodeName:
    return NodeName(f"n{number:02}.example.com")


def serial_of(name: NodeName) -> int:
    """Return the serial that a node's assignment is to have: each its own."""
    return 7 + int(name[1:3])


def entry_of(turn: NodeRun) -> AwaitedEntry:
    """Return the entry that a node publishes after a successful node run."""
    return AwaitedEntry(node=turn.node, digest=f"{turn.step:064x}", at=float(turn.step))


def began(*groups: Iterable[int], **options: object) -> RolloutBegan:
    """Return the beginning of a rollout over numbered nodes."""
    return RolloutBegan(
        id=ID,
        caller="choria=alice",
        groups=tuple(tuple(node(one) for one in group) for group in groups),
        options=RolloutOptions(**options),  # type: ignore[arg-type]
        title="test",
    )


def runs_started(*turns: NodeRun) -> NodeRunsStarted:
    return NodeRunsStarted(node_runs=turns)


def run_ended(
    turn: NodeRun, result: NodeResult = NodeResult.SUCCEEDED, **more: Any
) -> NodeRunEnded:
    return NodeRunEnded(node_run=turn, result=result, **more)


def rollout_stopped(ending: RolloutEnding, reason: str = "") -> RolloutStopped:
    return RolloutStopped(ending=ending, reason=reason)


def rollout_over(
    ending: RolloutEnding = RolloutEnding.DONE, reason: str = "", **more: Any
) -> RolloutEnded:
    return RolloutEnded(ending=ending, reason=reason, **{"still_held": {}, **more})


def reported(*events: Event, taken: bool = False) -> RolloutReport:
    """Return the report of events, all at the same time."""
    return RolloutReport.of([(AT, event) for event in events], taken=taken)


def memory_bus() -> MemoryKeyValue:
    return MemoryKeyValue(MemoryStore(now=lambda: 0.0))


class Notes(EventRecorder):
    """A journal in memory.

    Args:
        kill_at: The process is killed at this write, counted from 0; never for `None`.
        written: Whether that write is on the disk by then.
    """

    def __init__(self, *, kill_at: int | None = None, written: bool = False) -> None:
        self.events: list[Event] = []
        self.writes = 0
        self.kill_at = kill_at
        self.written = written
        self.words: list[tuple[RolloutCommand, str]] = []
        self.approve: Callable[[], str] | None = None  # what is approved again and again
        self.refused: list[str] = []  # why each command was refused; empty for accepted ones
        self.always_continue = False
        self.killed = False

    def append(self, *events: Event) -> None:
        if self.killed:
            raise Killed
        dies = self.writes == self.kill_at
        self.writes += 1
        if not dies or self.written:
            self.events += events
        if dies:
            self.killed = True
            raise Killed

    def now(self) -> datetime:
        """Return the time: that of the loop, after the beginning."""
        return BEGINNING + timedelta(seconds=asyncio.get_running_loop().time())

    async def hear(self, take: Callable[[SentCommand], str]) -> None:
        while True:
            if self.always_continue:
                self.words.append((RolloutCommand.CONTINUE, "bob"))
            if self.approve is not None:
                said = SentCommand(
                    command=RolloutCommand.APPROVE, caller="bob", machine="pc", about=self.approve()
                )
                self.refused.append(take(said))
            while self.words:
                word, caller = self.words.pop(0)
                ends = word is RolloutCommand.CONTINUE  # the pause of this moment
                about = identify_pause(RolloutState.of(self.events)) if ends else ""
                self.refused.append(
                    take(SentCommand(command=word, caller=caller, machine="pc", about=about))
                )
            await asyncio.sleep(1)


@dataclass
class SimulatedNodes(FleetNodes):
    """The nodes."""

    # how long each node's run takes; 1 for others
    seconds: dict[NodeName, float] = field(default_factory=dict)
    bad: set[NodeName] = field(default_factory=set)  # the nodes whose runs fail
    silent: set[NodeName] = field(default_factory=set)  # the nodes that do not answer
    # the nodes that do not answer when they are to stay on hold, or are released
    deaf_to_ends: set[NodeName] = field(default_factory=set)
    # the nodes that are not ready, with the reason
    unready: dict[NodeName, str] = field(default_factory=dict)
    held: set[NodeName] = field(default_factory=set)
    # the nodes that were to have the release, each time, and in which epoch
    staged: list[tuple[set[NodeName], int]] = field(default_factory=list)
    staging: float = 1.0  # how long that takes
    # the nodes that cannot, with the reason
    unstaged: dict[NodeName, str] = field(default_factory=dict)
    back: int = 0  # the step of the rollback runs
    stuck: set[NodeName] = field(default_factory=set)  # the nodes whose rollback fails
    # the nodes that then report that they never applied the release
    untaken: set[NodeName] = field(default_factory=set)
    lasted: dict[NodeName, tuple[float, ...]] = field(default_factory=dict)
    kept: dict[NodeName, float] = field(default_factory=dict)
    holds: int = 0
    # what each node would change
    foreseen: dict[NodeName, PredictedChanges] = field(default_factory=dict)
    # the nodes that do not answer a request for a prediction
    silent_looks: set[NodeName] = field(default_factory=set)
    # the node runs with which nodes predicted that
    looked: list[NodeRun] = field(default_factory=list)
    # the end of each prediction, by step and node
    looked_at: dict[tuple[int, NodeName], float] = field(default_factory=dict)
    # what each run changed
    ran_with: dict[NodeRun, PredictedChanges | None] = field(default_factory=dict)
    # the nodes that others wait for; they are asked for their entry
    producers: set[NodeName] = field(default_factory=set)
    # the number of requests for each node run
    requests: Counter[NodeRun] = field(default_factory=Counter)
    # what each run waited for
    after: dict[NodeRun, tuple[AwaitedEntry, ...]] = field(default_factory=dict)
    # the runs, in the order in which they began, with their begin and end
    ran: dict[NodeRun, tuple[float, float]] = field(default_factory=dict)
    twice: list[NodeRun] = field(default_factory=list)
    epoch: int = 0
    notes: Notes | None = None
    news: "asyncio.Queue[NodeRunReport]" = field(default_factory=asyncio.Queue)

    def _live(self) -> None:
        """End what asks, if its process was killed."""
        if self.notes is not None and self.notes.killed:
            raise Killed

    async def ready(self, nodes: Collection[NodeName]) -> Problems:
        self._live()
        silent = {one: "did not answer" for one in nodes if one in self.silent}
        return silent | {one: why for one, why in self.unready.items() if one in nodes}

    def last_runs(self) -> LastRunsReported:
        return LastRunsReported(durations=self.lasted)

    async def hold(
        self, nodes: Collection[NodeName], *, epoch: int, seconds: float | None = None
    ) -> Problems:
        self._live()
        self.kept = {} if seconds is None else dict.fromkeys(nodes, seconds)
        self.epoch = max(epoch, self.epoch)
        self.holds += 1
        self.held |= set(nodes) - self.silent
        deaf = self.silent if seconds is None else self.silent | self.deaf_to_ends
        return {one: "did not answer" for one in nodes if one in deaf}

    async def release(self, nodes: Collection[NodeName], *, epoch: int) -> Problems:
        self._live()
        deaf = self.silent | self.deaf_to_ends
        self.held -= set(nodes) - deaf
        return {one: "did not answer" for one in nodes if one in deaf}

    async def stage(self, nodes: Collection[NodeName], *, epoch: int) -> StagingResult:
        self._live()
        assert self.staged or not self.ran, "no node has changed"
        self.staged.append((set(nodes), epoch))
        await asyncio.sleep(self.staging)
        problems = {one: why for one, why in self.unstaged.items() if one in nodes}
        serials = {one: serial_of(one) for one in nodes if one not in problems}
        return StagingResult(serials=serials, problems=problems)

    async def start(
        self,
        turn: NodeRun,
        *,
        epoch: int,
        serial: int,
        after: tuple[AwaitedEntry, ...] = (),
        looked: int = 0,
    ) -> NodeRunAnswer:
        self._live()
        self.requests[turn] += 1
        assert not looked or (looked, turn.node) in self.looked_at
        self.after[turn] = after
        assert epoch == self.epoch
        assert serial == (serial_of(turn.node) if self.staged else 0)
        if turn.node in self.silent:
            return NodeRunAnswer(problem="did not answer")
        now = asyncio.get_running_loop().time()
        if turn not in self.ran and looked and now - self.looked_at[looked, turn.node] > FRESH:
            end = NodeRunEnded(node_run=turn, result=NodeResult.FAILED, reason="stale")
            return NodeRunAnswer(end=end, look_again=True)
        if turn not in self.ran:
            assert turn.node in self.held
            self.ran_with[turn] = self.foreseen.get(turn.node)
            self.ran[turn] = (now, now + self.seconds.get(turn.node, 1.0))
            asyncio.get_running_loop().call_at(self.ran[turn][1], self._report_end, turn)
        if now < self.ran[turn][1]:
            return NodeRunAnswer()
        return NodeRunAnswer(end=self._end(turn))

    def _report_end(self, turn: NodeRun) -> None:
        """Report that a node run has ended, with its result if nothing else is to be reported."""
        end = self._end(turn)
        more = self.staged or turn.node in self.producers | self.silent
        more = more or end.result is not NodeResult.SUCCEEDED
        self.news.put_nowait((turn, None if more else replace(end, entry=None)))

    def _end(self, turn: NodeRun) -> NodeRunEnded:
        if turn.step == self.back and turn.node in self.untaken:
            return NodeRunEnded(node_run=turn, result=NodeResult.NOT_REACHED)
        bad = turn.node in (self.stuck if turn.step == self.back else self.bad)
        fate, outcome = (NodeResult.FAILED, "failed") if bad else (NodeResult.SUCCEEDED, "changed")
        entry = None if bad else entry_of(turn)
        return NodeRunEnded(node_run=turn, result=fate, outcome=outcome, entry=entry)

    async def look(
        self, turn: NodeRun, *, epoch: int, step: int, after: tuple[AwaitedEntry, ...]
    ) -> NodeRunAnswer:
        self._live()
        assert (epoch, turn.node in self.held) == (self.epoch, True)
        assert turn not in self.ran, "a node that predicts has not run"
        looking = NodeRun(step, turn.node)
        if turn.node in self.silent_looks:
            return NodeRunAnswer(problem="did not answer")
        self.after[looking] = after
        if looking not in self.looked:
            self.looked.append(looking)
            self.looked_at[step, turn.node] = asyncio.get_running_loop().time() + 0.5
            asyncio.get_running_loop().call_later(0.5, self.news.put_nowait, (looking, None))
            return NodeRunAnswer()
        changes = self.foreseen[turn.node]
        return NodeRunAnswer(end=run_ended(looking, outcome="unchanged", predicted_changes=changes))

    async def ends(self) -> AsyncGenerator[NodeRunReport, None]:
        while True:
            yield await self.news.get()

    def at_once(self) -> int:
        """Return how many ran at the same time, at most."""
        begins = [begin for begin, _ in self.ran.values()]
        return max(sum(b <= at < e for b, e in self.ran.values()) for at in begins)


@dataclass
class SimulatedProbe(Probing):
    """Checks, each of which takes half a second."""

    bad: set[Check] = field(default_factory=set)  # the checks that do not pass
    # from when on each check passes; at once for others
    up: dict[Check, float] = field(default_factory=dict)
    # the checks that were tried, and when
    tried: list[tuple[Check, float]] = field(default_factory=list)
    notes: Notes | None = None  # the journal of the rollout that checks
    on: int = 0
    most: int = 0

    async def problem(self, check: Check, *, seconds: float) -> str:
        if self.notes is not None and self.notes.killed:
            raise Killed
        now = asyncio.get_running_loop().time()
        self.tried.append((check, now))
        self.on += 1
        self.most = max(self.most, self.on)
        await asyncio.sleep(0.5)
        self.on -= 1
        return "answered 503" if check in self.bad or now < self.up.get(check, 0.0) else ""


def execution(
    state: RolloutState, nodes: SimulatedNodes, notes: Notes, probe: SimulatedProbe | None = None
) -> Execution:
    """Return a rollout that a process carries out."""
    checks = CheckRunner(probe or SimulatedProbe())
    return Execution(state, notes=notes, nodes=nodes, checks=checks, on_event=lambda _: None)


def new(
    first: RolloutBegan, nodes: SimulatedNodes, notes: Notes, probe: SimulatedProbe | None = None
) -> Execution:
    """Return a rollout that begins."""
    notes.append(first)
    return execution(RolloutState(first), nodes, notes, probe)


async def begun(
    first: RolloutBegan, nodes: SimulatedNodes, notes: Notes, *, after: float
) -> tuple[Execution, "asyncio.Task[RolloutEnded]"]:
    """Return a rollout as it is some seconds after its beginning, and its task."""
    work = new(first, nodes, notes)
    doing = asyncio.create_task(work.run())
    await asyncio.sleep(after)
    return work, doing


async def carry_out(
    first: RolloutBegan,
    nodes: SimulatedNodes,
    notes: Notes | None = None,
    probe: SimulatedProbe | None = None,
) -> RolloutState:
    """Carry a rollout out to its end, and return its state."""
    work = new(first, nodes, notes or Notes(), probe)
    over = await work.run()
    assert isinstance(over, RolloutEnded)
    return work.state


def words(state: RolloutState) -> list[str]:
    """Return how the part of each node ended, by name."""
    return [str(fate) for fate in state.results().values()]


def killed(work: object) -> bool:
    """Do work; return whether the process ended in it, as by kill -9."""
    try:
        run_simulated(work)  # type: ignore[arg-type]
    except Killed:
        return True
    except BaseExceptionGroup as group:
        assert group.subgroup(Killed) is not None
        return True
    return False


SALT = "5a" * 16


def change(title: str, value: int = 0) -> PropertyChange:
    """Return a change of the content of a file, to some value."""
    return PropertyChange(
        type="File", title=title, property="content", mark=f"{hash_of(title, value):032x}"
    )


def hash_of(title: str, value: int) -> int:
    return int.from_bytes(title.encode()[-8:], "big") * 1000 + value


def foretold(*changes: PropertyChange, release: str = "shop/tags/r7") -> PredictedChanges:
    return PredictedChanges(release=release, total=len(changes), changes=tuple(sorted(changes)))


def approval(nodes: dict[NodeName, PredictedChanges]) -> Approval:
    return Approval(rollout=ID, digest="d" * 64, salt=SALT, nodes=nodes)


def approved(first: RolloutBegan) -> RolloutBegan:
    """Return a rollout for each of whose nodes one change is approved."""
    nodes = {one: foretold(change("/a")) for group in first.groups for one in group}
    return replace(first, approval=approval(nodes), salt=SALT)


OWNER = f"choria=alice/rollout/{ID}"
TURN = NodeRun(2, node(1))


def replied(result: dict[str, Json] | str) -> NodeAnswer:
    """Return a reply; one that refuses for a text."""
    fine = not isinstance(result, str)
    return NodeAnswer(
        reply=NodeReply(
            node=SignerName("n"),
            caller=SignerName("alice"),
            iat=0,
            exp=0,
            in_reply_to="",
            ok=fine,
            result={} if isinstance(result, str) else result,
            error=result if isinstance(result, str) else None,
        )
    )


class Client(RequestClient):
    """Gives the answer that a test sets."""

    whose = "choria=alice"

    @property
    def caller(self) -> str:
        return self.whose

    def __init__(self, answer: NodeAnswer | None) -> None:
        self.answer = answer
        self.asked: list[tuple[str, Arguments]] = []

    async def ask_all(
        self, names: Sequence[NodeName], action: str, args: Arguments, *, patience: float
    ) -> dict[str, NodeAnswer]:
        return {name: await self.ask(name, action, args, patience=patience) for name in names}

    async def ask(
        self, node: NodeName, action: str, args: Arguments, *, patience: float
    ) -> NodeAnswer:
        self.asked.append((action, args))
        if self.answer is None:
            raise UnavailableError("away", where="bus")
        return self.answer


def fleet(
    answer: NodeAnswer | None,
    directory: Path,
    *,
    caller: str = "choria=alice",
    first: RolloutBegan | None = None,
) -> tuple[FleetNodes, Client]:
    """Return nodes that give this answer to a rollout, by default one with noop and a tag."""
    client = Client(answer)
    client.whose = caller
    first = first or began([1], [1], noop=True, tags=("t",))
    nodes = FleetNodes(memory_bus(), client=client, verifier=verifier(directory), began=first)
    return nodes, client


FIRST = began([1, 2], [3])
STARTED = runs_started(NodeRun(1, node(1)))
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

    def forge(self, who: Person, what: RolloutCheckpoint) -> None:
        """Overwrite the checkpoint with one that this person signed."""
        self.store.write(KEY, who.signer.sign(what.to_payload(), MessageKind.CHECKPOINT), None)

    async def published(self, who: Person | None = None) -> PublishedCheckpoint:
        """Return the checkpoint that a person reads, by default Alice."""
        found = await self.heads_of(who or self.alice).read(ID)
        assert found is not None
        return found

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
