"""A fleet of simulated nodes that react to each other, for property tests.

Some parts of a node survive a kill: inbox, saved state of the reactor, run records. Coalescer and
reactor, which are the real ones, do not. The bus may be late, and has only the newest entry of a
node. What a run publishes may depend on the answers that it got, so that nodes influence each
other. After each durable write a test may kill the agent.
"""

import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from localpuppet.base.formats.converter import from_record, to_record
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.edges.reactions import AnswerDigest, Dependency, FinishedRun, ReactionState
from localpuppet.fleet.edges.reactor import Reactor
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.query.functions import FunctionCall, FunctionReply
from localpuppet.fleet.triggers.cause import CauseKind, RunCause
from localpuppet.fleet.triggers.coalescing import Coalescer, Path
from tests.doubles.inventory import MemoryInventory
from tests.doubles.ports import FakeLog
from tests.fleet.inventory.entries import entry

START = 1_795_000_000.0


class KilledError(Exception):
    """The test killed the agent at this place."""


@dataclass
class Run:
    """A Puppet that runs or ran."""

    id: str
    paths: tuple[Path, ...]
    causes: tuple[str, ...]
    answers: tuple[Dependency, ...] = ()
    compiled: bool = False
    over: bool = False
    good: bool = False


@dataclass
class Node:
    """One node; also a `Host`, `Runs`, `Peers`, `Source` and `Memory` for its reactor."""

    fleet: "ReactingFleet"
    me: NodeName
    questions: list[FunctionCall]
    feeds_back: bool
    role: str = "web"
    value: int = 0
    view: dict[str, tuple[InventoryEntry, int]] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    disk: str = ""
    inbox: dict[str, RunCause] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    agent: Coalescer | None = None
    reactor: Reactor | None = None
    own_run: bool = False
    held: str | None = None
    broken: bool = False  # whether its catalog fails
    die_at: str = ""
    late: bool = False  # whether an earlier agent decided on the pending reaction
    name: str = "query"

    @property
    def on(self) -> Run | None:
        return self.runs[-1] if self.runs and not self.runs[-1].over else None

    @property
    def is_running(self) -> bool:
        return self.agent is not None and self.agent.running is not None

    def owes(self, causes: Iterable[str]) -> bool:
        waiting = None if self.agent is None else self.agent.waiting
        return waiting is not None and any(one in waiting for one in causes)

    def react(self, causes: Sequence[RunCause]) -> None:
        fresh = [one for one in causes if one.id not in self.taken]
        for one in fresh:
            self.taken.add(one.id)
            self.inbox[one.id] = one
        if fresh:
            waits = self.owes(one.id for one in self.inbox.values() if one.kind is CauseKind.QUERY)
            described = [self.fleet.described(self, one) for one in fresh]
            self.fleet.say(self, "reacted", waits=waits, causes=described, late=self.late)
        self._die("accepted")
        for one in fresh:
            assert self.agent is not None
            self.agent.accept(one)

    def after(self, run: str | None) -> tuple[list[FinishedRun], bool]:
        whole = [one for one in self.runs if one.over and (run is None or one.id > run)]
        if run is None:
            good = [index for index, one in enumerate(whole) if one.good]
            whole = whole[good[-1] :] if good else whole
        ended = [FinishedRun(run=one.id, good=one.good, dependencies=one.answers) for one in whole]
        return ended, self.on is not None

    def entry(self, node: NodeName) -> InventoryEntry | None:
        found = self.view.get(node)
        return None if found is None else found[0]

    def since(self, revision: int) -> set[str]:
        return {node for node, (_, came) in self.view.items() if came > revision}

    def dependencies_of(self, run: str) -> Sequence[Dependency]:
        return next(one.answers for one in self.runs if one.id == run)

    def ask(self, key: str) -> AnswerDigest:
        reply = self.fleet.reply(key, [one for _, (one, _) in sorted(self.view.items())])
        revision = max((came for _, came in self.view.values()), default=0)
        return AnswerDigest(digest=reply.digest, revision=revision, parts=reply.parts)

    def answers(self) -> tuple[Dependency, ...]:
        """Return the answers that a run would get now."""
        return tuple(
            Dependency(source="query", key=key, text=one.text, answer=self.ask(key))
            for one in self.questions
            for key in [json.dumps([one.function, *one.arguments])]
        )

    def watched(self) -> Iterator[Dependency]:
        """Yield the questions of the last good run, each with its current answer."""
        good = [run for run in self.runs if run.good]
        for one in good[-1].answers if good else ():
            yield replace(one, answer=self.ask(one.key))

    def load(self) -> ReactionState:
        if not self.disk:
            return ReactionState()
        return from_record(ReactionState, json.loads(self.disk))

    def save(self, state: ReactionState) -> None:
        self._die("before")
        self.disk = json.dumps(to_record(state))
        if state.pending:
            self.fleet.decided(self, state.pending)
            self.late = False
        self._die("pending" if state.pending else "saved")

    def _die(self, place: str) -> None:
        if self.die_at == place:
            self.die_at = ""
            raise KilledError


class ReactingFleet:
    """The nodes and their history."""

    def __init__(
        self, questions: Sequence[Sequence[FunctionCall]], feeds_back: Sequence[bool]
    ) -> None:
        self.time = START
        self.log = FakeLog()
        self.history: list[dict[str, Any]] = []
        self.bus: dict[str, tuple[InventoryEntry, int]] = {}
        self._numbers = 0
        self._answered: dict[tuple[str, str], str] = {}
        self._causes: dict[str, dict[str, Any]] = {}
        self._inventories: dict[tuple[int, ...], MemoryInventory] = {}
        self._replies: dict[tuple[object, ...], FunctionReply] = {}
        self.nodes = [
            Node(
                fleet=self,
                me=NodeName(f"n{number}.example.com"),
                questions=list(asked),
                feeds_back=feeds,
            )
            for number, (asked, feeds) in enumerate(zip(questions, feeds_back, strict=True))
        ]
        for node in self.nodes:
            self.restart(node)

    # A `Clock` for the reactors.

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.time, UTC)

    def monotonic(self) -> float:
        return self.time

    def reply(self, key: str, entries: Sequence[InventoryEntry]) -> FunctionReply:
        """Answer a question about entries; the same one is asked once."""
        ids = tuple(map(id, entries))  # the inventory keeps the entries
        if (key, *ids) not in self._replies:
            if ids not in self._inventories:
                self._inventories[ids] = MemoryInventory(entries)
            function, *arguments = json.loads(key)
            reply = FunctionCall.of(function, arguments).answer(self._inventories[ids])
            self._inventories[ids].close()  # a simulation has hundreds
            self._replies[key, *ids] = reply
        return self._replies[key, *ids]

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def say(self, node: Node, what: str, **more: Any) -> None:
        event = {"at": len(self.history), "time": self.time, "node": node.me, "what": what}
        self.history.append(event | more)

    def decided(self, node: Node, causes: Sequence[RunCause]) -> None:
        """Record the answers that a reaction is for, and the chains that led to it."""
        for cause in causes:
            entry_ = node.entry(cause.path[-1])
            asked = {change.query for change in cause.changes}
            self._causes[cause.id] = {
                "path": cause.path,
                "led": [()] if entry_ is None else entry_.paths,
                "answers": {
                    one.key: one.answer.digest for one in node.watched() if one.text in asked
                },
            }

    def described(self, node: Node, cause: RunCause) -> dict[str, Any]:
        if cause.id not in self._causes:
            self.decided(node, [cause])
        return self._causes[cause.id]

    # Events from outside a node.

    def kill(self, node: Node) -> None:
        if node.agent is not None:
            self.say(node, "killed")
        node.agent = node.reactor = None
        node.own_run, node.late = False, True

    def restart(self, node: Node) -> None:
        if node.agent is not None:
            return
        node.agent = Coalescer.restore(node.inbox.values())
        node.reactor = Reactor(
            node,
            runs=node,
            sources=[node],
            peers=node,
            refusal=lambda _: None,
            memory=node,
            clock=self,
            log=_NodeLog(self, node),
            new_id=lambda: str(uuid.UUID(int=self.number())),
        )

    def timer(self, node: Node) -> None:
        """The node's own run is due."""
        if node.agent is None:
            return
        cause = RunCause(
            kind=CauseKind.TIMER,
            sender=node.me,
            uuid=str(uuid.UUID(int=self.number())),
            timestamp=int(self.time),
            expires=None,
        )
        node.inbox[cause.id] = cause
        node.agent.accept(cause)

    def deliver(self, node: Node, sender: str) -> None:
        """A node receives the newest entry of another node."""
        if sender in self.bus and node.view.get(sender) != self.bus[sender]:
            node.view[sender] = self.bus[sender]
            self._look_at(node)

    def forget(self, node: Node, gone: str) -> None:
        """An operator removes a node from the inventory."""
        if node.view.pop(gone, None) is not None:
            self._look_at(node)

    def _look_at(self, node: Node) -> None:
        """Record which answers changed."""
        for one in node.watched():
            place = (node.me, one.key)
            if self._answered.get(place) != one.answer.digest:
                self._answered[place] = one.answer.digest
                self.say(node, "changed", question=one.key, digest=one.answer.digest)

    # Actions of a node.

    def turn(self, node: Node, *, die_at: str = "") -> None:
        """One step of the reactor and of the agent."""
        node.die_at = die_at
        try:
            if node.reactor is not None:
                busy = node.reactor.catch_up()[1]
                if not busy:
                    node.reactor.act(node.reactor.look())
        except KilledError:
            self.kill(node)
        node.die_at = ""

    def step(self, node: Node) -> None:
        """The agent starts a run if one is due and the node is free."""
        if node.agent is None or (node.on is not None and node.agent.running is None):
            return
        step = node.agent.step(self.time, held=node.held)
        if step.start is not None:
            run = Run(id=f"{self.number():09}", paths=step.start.paths, causes=step.start.ids)
            node.runs.append(run)
            node.own_run = True
            kinds = [node.inbox[one].kind for one in step.start.ids]
            self.say(node, "started", run=run.id, causes=run.causes, kinds=kinds, paths=run.paths)

    def compile(self, node: Node) -> None:
        """The active run asks its questions."""
        run = node.on
        if run is not None and not run.compiled:
            run.compiled, run.answers = True, node.answers()
            for one in run.answers:
                self.say(node, "answered", run=run.id, question=one.key, digest=one.answer.digest)

    def end(self, node: Node) -> None:
        """The active run ends; it is good if its catalog is."""
        run = node.on
        if run is None:
            return
        run.over, run.good = True, run.compiled and not node.broken
        self.say(node, "ended", run=run.id, good=run.good)
        if run.good:
            self._publish(node, run)
            self._answered.update({(node.me, one.key): one.answer.digest for one in run.answers})
            self._look_at(node)

    def acknowledge(self, node: Node) -> None:
        """The agent notices that its run has ended."""
        if node.agent is None or node.agent.running is None or node.on is not None:
            return
        for one in node.agent.ended():
            node.inbox.pop(one, None)

    def _publish(self, node: Node, run: Run) -> None:
        digests = json.dumps([one.answer.digest for one in run.answers]) if node.feeds_back else ""
        new = entry(
            node.me,
            at=self.time,
            facts={
                "value": node.value,
                "digests": digests,
                "networking": {"ip": f"10.0.0.{node.value}"},
            },
            roles=(node.role,),
            paths=run.paths,
        )
        before = self.bus.get(node.me)
        if before is None or before[0].digest != new.digest:
            self.bus[node.me] = (new, self.number())

    # Recovery.

    def work(self, node: Node) -> None:
        """Let a node do all its work."""
        self.restart(node)
        for _ in range(3):
            self.compile(node)
            self.end(node)
            self.acknowledge(node)
            self.turn(node)
            self.step(node)

    def let_all_work(self) -> None:
        for node in self.nodes:
            self.work(node)

    def settle(self, rounds: int) -> bool:
        """Let every node work and change nothing; return whether the fleet becomes quiet."""
        for node in self.nodes:
            node.held = None
            self.restart(node)
        for _ in range(rounds):
            self.time += 3600  # no rate limit delays a reaction
            before = len([one for one in self.history if one["what"] == "started"])
            for node in self.nodes:
                for other in self.bus:
                    self.deliver(node, other)
                self.work(node)
            after = len([one for one in self.history if one["what"] == "started"])
            if before == after and not any(node.inbox or node.on for node in self.nodes):
                return True
        return False


class _NodeLog(FakeLog):
    """Adds the log lines of a node to the history."""

    def __init__(self, fleet: ReactingFleet, node: Node) -> None:
        super().__init__()
        self._fleet = fleet
        self._node = node

    def info(self, text: str, **_kind: object) -> None:
        self._fleet.say(self._node, "line", text=text)
