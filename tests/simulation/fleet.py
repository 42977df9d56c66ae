"""A fleet of simulated nodes that trigger each other, for property tests.

Some parts of a node survive a kill: inbox, remembered ids, a run that continues without its agent.
The agent with its coalescer does not. The bus may lose, repeat, reorder and delay messages. Each
durable write of the agent is a separate step, after which a test may kill the agent.
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from localpuppet.base.formats.names import NodeName
from localpuppet.base.machine.sqlite import ALWAYS
from localpuppet.fleet.triggers.cause import CauseKind, RunCause, Trigger
from localpuppet.fleet.triggers.coalescing import Batch, Coalescer, DroppedCause, Path
from localpuppet.fleet.triggers.trigger_admission import Admission, AdmittedTrigger, next_path

START = 1_795_000_000
TTL = 180


@dataclass
class Run:
    """A running Puppet, with or without its agent."""

    id: str
    paths: tuple[Path, ...]
    unsent: list[NodeName]
    over: bool = False


@dataclass
class Simulated:
    """One node."""

    name: NodeName
    receivers: list[NodeName]
    skew: int = 0
    hold: str | None = None
    inbox: dict[str, RunCause] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    run: Run | None = None
    agent: Coalescer | None = None
    agent_has_run: bool = False  # whether this agent started `run`
    starting: Batch | None = None  # the batch that the agent decided to run, but has not started


@dataclass
class Message:
    """A trigger on its way."""

    to: NodeName
    payload: bytes


class Fleet:
    """Nodes, a bus between them, and the history of what happened."""

    def __init__(
        self,
        edges: list[list[int]],
        *,
        coalescer: type[Coalescer] = Coalescer,
        path: Callable[..., Path | str] = next_path,
    ) -> None:
        self._coalescer = coalescer
        self._path = path
        self.now = float(START)
        names = [NodeName.parse(f"n{number}.example.com") for number in range(len(edges))]
        self.nodes = [
            Simulated(name=name, receivers=[names[to] for to in receivers], agent=coalescer())
            for name, receivers in zip(names, edges, strict=True)
        ]
        self.bus: list[Message] = []
        self.history: list[dict[str, Any]] = []
        self._numbers = 0

    def named(self, name: NodeName) -> Simulated:
        return next(node for node in self.nodes if node.name == name)

    def say(self, node: Simulated, what: str, **more: Any) -> None:
        event = {"at": len(self.history), "node": node.name, "what": what, **more}
        self.history.append(event)

    def fresh_uuid(self) -> str:
        self._numbers += 1
        return str(uuid.UUID(int=self._numbers))

    def clock(self, node: Simulated) -> float:
        return self.now + node.skew

    # Events from outside a node.

    def origin(self, node: Simulated, kind: CauseKind) -> None:
        """A timer, a person or a request asks for a run."""
        if node.agent is None:
            return
        now = int(self.clock(node))
        cause = RunCause(
            kind=kind, sender=node.name, uuid=self.fresh_uuid(), timestamp=now, expires=now + 1800
        )
        self._accept(node, cause, die=False)

    def deliver(self, message: Message, *, die: bool = False) -> None:
        """The agent reads a message; with `die`, a kill follows as soon as it is on disk."""
        node = self.named(message.to)
        if node.agent is None:
            return
        now = self.clock(node)
        # As in the inbox, an expired id is forgotten only if it is not one of the newest. So a
        # clock that is set forward and back makes no message new.
        newest = sorted(node.seen.items(), key=lambda item: -item[1])[:ALWAYS]
        node.seen = dict(newest) | {key: until for key, until in node.seen.items() if now <= until}
        admission = Admission(
            me=node.name, trigger_refusal=lambda _: None, seen=node.seen.__contains__
        )
        sender = Trigger.parse(message.payload).hostname
        verdict = admission.admit(message.payload, now=now, signer=lambda: sender)
        if not isinstance(verdict, AdmittedTrigger):
            self.say(node, "refused", reason=verdict.reason)
            return
        problem = node.agent.problem(verdict.cause)
        if problem is not None:
            self.say(node, "refused", reason=problem)
            return
        node.seen[verdict.cause.id] = verdict.remember_until
        self._accept(node, verdict.cause, die=die)

    def _accept(self, node: Simulated, cause: RunCause, *, die: bool) -> None:
        assert node.agent is not None
        node.inbox[cause.id] = RunCause.from_dict(cause.to_dict())
        self.say(node, "accepted", id=cause.id, path=cause.path, expires=cause.expires)
        if die:
            self.kill(node, run_too=False)
            return
        node.agent.accept(cause)

    def kill(self, node: Simulated, *, run_too: bool) -> None:
        """The agent ends, and its memory is lost."""
        if node.agent is not None:
            self.say(node, "killed")
        node.agent, node.agent_has_run, node.starting = None, False, None
        if run_too and node.run is not None:
            self._over(node)
        if node.run is not None and node.run.over:
            node.run = None

    def restart(self, node: Simulated) -> None:
        """The agent starts and reads its disk."""
        if node.agent is None:
            node.agent = self._coalescer.restore(node.inbox.values())

    # Actions of a node.

    def step(self, node: Simulated, *, die: bool = False) -> None:
        """One step of the agent's loop; for `die`, see `_log`."""
        if node.agent is None:
            return
        step = node.agent.step(self.clock(node), held=node.hold)
        if step.start is not None:
            node.starting = step.start
            self.say(node, "taken", causes=step.start.ids)
        self._log(node, step.dropped, die=die, clock=int(self.clock(node)))

    def launch(
        self, node: Simulated, *, die: bool = False, busy: bool = False, refused: bool = False
    ) -> None:
        """Start the run that the agent decided on; meanwhile, further causes may arrive."""
        if node.agent is None or node.starting is None:
            return
        batch, node.starting = node.starting, None
        orphan = node.run is not None and not node.agent_has_run
        if busy or orphan:  # it has the node's flock
            node.agent.put_back()
        elif refused:
            self._log(node, node.agent.give_up("the input is broken"), die=die)
        else:
            run = Run(id=self.fresh_uuid(), paths=batch.paths, unsent=list(node.receivers))
            self.say(node, "started", run=run.id, causes=batch.ids)
            node.run, node.agent_has_run = run, True

    def _log(
        self, node: Simulated, drops: tuple[DroppedCause, ...], *, die: bool, **more: Any
    ) -> None:
        """Log drops, then forget them; with `die`, a kill comes between the two."""
        for drop in drops:
            self.say(node, "dropped", id=drop.id, reason=drop.reason, **more)
        if die:
            self.kill(node, run_too=False)
            return
        for drop in drops:
            del node.inbox[drop.id]

    def notify(self, node: Simulated) -> None:
        """The active run sends its next trigger."""
        run = node.run
        if run is None or run.over or not run.unsent:
            return
        receiver = run.unsent.pop()
        path = self._path(run.paths, me=node.name, receiver=receiver)
        if isinstance(path, str):
            self.say(node, "blocked", to=receiver, reason=path)
            return
        trigger = Trigger(
            hostname=node.name,
            tags=(),
            hosts=(receiver,),
            timestamp=int(self.clock(node)),
            uuid=self.fresh_uuid(),
            ttl=TTL,
            hops=len(path) - 1,
            path=path,
        )
        self.say(node, "sent", run=run.id, to=receiver, path=path)
        self.bus.append(Message(to=receiver, payload=trigger.to_payload()))

    def end(self, node: Simulated) -> None:
        """The active run ends; its agent, if it is alive, has not noticed yet."""
        if node.run is not None and not node.run.over:
            self._over(node)
            if not node.agent_has_run:
                node.run = None

    def _over(self, node: Simulated) -> None:
        assert node.run is not None
        if not node.run.over:
            self.say(node, "ended", run=node.run.id)
        node.run.over = True

    def acknowledge(self, node: Simulated) -> None:
        """The agent notices that its run has ended, and records that."""
        if node.agent is None or node.run is None or not (node.run.over and node.agent_has_run):
            return
        for cause in node.agent.ended():
            node.inbox.pop(cause, None)
        node.run, node.agent_has_run = None, False

    # Recovery.

    def settle(self, rounds: int) -> bool:
        """Let every node work and send nothing new; return whether the fleet becomes quiet."""
        for node in self.nodes:
            node.hold, node.skew = None, 0
            self.restart(node)
        for _ in range(rounds):
            self.round()
            if self.quiet():
                return True
        return False

    def round(self) -> None:
        """Deliver all messages, and let each node work."""
        arriving, self.bus = self.bus, []
        for message in arriving:
            self.deliver(message)
        for node in self.nodes:
            self.work(node)

    def work(self, node: Simulated) -> None:
        """Let a node finish its run, and run once more for waiting causes."""
        for _ in range(2):
            while node.run is not None and not node.run.over and node.run.unsent:
                self.notify(node)
            self.end(node)
            self.acknowledge(node)
            self.step(node)
            self.launch(node)

    def quiet(self) -> bool:
        """Return whether no message is on its way, and no cause waits or runs."""
        return not self.bus and not any(node.run or node.inbox for node in self.nodes)
