"""The state of a rollout, derived from its events.

- The same events give the same state, so a rollout continues from its journal.
- A node run that started once is never started again.
- A node run whose checks failed has failed.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

from localpuppet.base.errors import StateError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.inventory.awaited import Awaited
from localpuppet.node.puppet.changes import Foreseen, together
from localpuppet.rollout.execution.changes.comparing import Difference, extend
from localpuppet.rollout.execution.events import (
    Approved,
    Began,
    Checked,
    Continued,
    Ended,
    Ending,
    Event,
    Fate,
    Lasted,
    Looked,
    Over,
    Overtaken,
    Paused,
    Resumed,
    Skipped,
    Staged,
    Started,
    Stopped,
    Turn,
    Withdrawn,
)
from localpuppet.rollout.execution.options import OnFailure
from localpuppet.rollout.plans.check import Check


class State:
    """The state of a rollout.

    Args:
        began: Its first event.
    """

    def __init__(self, began: Began) -> None:
        self.began = began
        self.epoch = 1
        self._nodes = frozenset(node for group in began.groups for node in group)
        self.skipped: dict[NodeName, str] = {}
        self.durations: dict[NodeName, tuple[float, ...]] = {}  # of its last good runs
        self.usual: dict[NodeName, float] = {}  # their median
        self.until = began.options.until
        self.serials: dict[NodeName, int] = {}  # of the release's assignments, once all have it
        self.started: set[Turn] = set()
        self.ends: dict[Turn, Ended] = {}
        self.foreseen: dict[NodeName, Foreseen] = {}  # with noop: the reported changes
        self.differing: dict[Turn, Difference] = {}  # node runs that wait for an approval
        self.seen: dict[Turn, Difference] = {}  # all differences, also those approved later
        self.approved: dict[Turn, Approved] = {}
        self.granted: dict[Turn, Foreseen] = {}  # approved changes, extended by differences
        self.cleared: set[Turn] = set()  # node runs whose changes are approved
        self.looked: dict[Turn, int] = {}  # the step of the last comparison before each run
        self._looks: Counter[Turn] = Counter()
        self.entries: dict[NodeName, Awaited] = {}  # of nodes that ran, in the order of their ends
        self.checked: set[Turn] = set()
        self.failed: dict[NodeName, Ended] = {}
        self.accepted: frozenset[NodeName] = frozenset()  # failed nodes that an operator accepted
        self._running: set[Turn] = set()
        self._unchecked: set[Turn] = set()
        self.passed: set[str] = set()  # points where the rollout has paused
        self.pauses = 0  # how many so far
        self.paused: Paused | None = None
        self.stopped: Stopped | None = None
        self.overtaken: Overtaken | None = None
        self.over: Over | None = None
        self._makers: dict[NodeName, list[frozenset[NodeName]]] = {}
        for need in began.needs:
            makers = frozenset(need.producers)
            for node in need.consumers:
                self._makers.setdefault(node, []).append(makers)

    @classmethod
    def of(cls, events: Iterable[Event]) -> "State":
        """Return the state after these events.

        Raises:
            StateError: The first event is not `Began`, or see `take`.
        """
        iterator = iter(events)
        first = next(iterator, None)
        if not isinstance(first, Began):
            raise StateError(
                "does not begin with the beginning of a rollout",
                hint="its process was killed before that; move it away",
            )
        state = cls(first)
        for event in iterator:
            state.take(event)
        return state

    @property
    def nodes(self) -> tuple[NodeName, ...]:
        """The selected nodes, sorted."""
        return tuple(sorted(self._nodes))

    @property
    def running(self) -> list[Turn]:
        """The node runs that started and have no result, sorted."""
        return sorted(self._running)

    @property
    def unchecked(self) -> list[Turn]:
        """The successful node runs whose checks have not ended, sorted."""
        return sorted(self._unchecked)

    def settled(self, turn: Turn) -> bool:
        """Return whether a node run and its checks are over."""
        end = self.ends.get(turn)
        if end is None:
            return False
        return turn in self.checked or end.fate is not Fate.SUCCEEDED or not self.checks(turn)

    @property
    def step_back(self) -> int:
        """The step of the runs that take nodes back to their previous release."""
        return len(self.began.groups) + 1

    def looks(self, turn: Turn) -> bool:
        """Return whether the changes of a node run must be compared before it starts."""
        approved = self.began.approval is None or turn.step == self.step_back
        return not (approved or turn in self.cleared)

    def look_step(self, turn: Turn) -> int:
        """Return the step of the next comparison before a node run; each has its own step."""
        earlier = self.epoch - 1 + self._looks[turn]
        return self.step_back + earlier * len(self.began.groups) + turn.step

    def may_change(self, turn: Turn) -> Foreseen | None:
        """Return the approved changes of a node run, from the rollout and from later approvals."""
        approval = self.began.approval
        before = None if approval is None else approval.nodes.get(turn.node)
        return self.granted.get(turn, before)

    def is_decided(self, turn: Turn, step: int) -> bool:
        """Return whether all changes that a node reported in a comparison are approved."""
        waits = turn in self.differing or turn not in self._running
        return self.looked.get(turn) == step and not waits

    def as_it_is(self, event: Event) -> Event:
        """Return an event as it counts now: after a stop, a compared run is withdrawn."""
        ends = self.stopped is not None
        return Withdrawn(turns=(event.turn,)) if ends and isinstance(event, Looked) else event

    def makers_for(self, node: NodeName) -> Sequence[frozenset[NodeName]]:
        """Return the sets of nodes that produce what a node's components consume."""
        return self._makers.get(node, ())

    @property
    def goes_back(self) -> bool:
        """Whether the nodes that took the release go back to their previous one."""
        ending = None if self.stopped is None else self.stopped.ending
        if self.began.options.on_failure is OnFailure.ROLLBACK and ending is Ending.FAILURES:
            return True
        back = ending is Ending.TAKEN_BACK
        return back or any(turn.step == self.step_back for turn in self.started)

    @property
    def took(self) -> dict[NodeName, int]:
        """Node → its last started step, for nodes that may have taken the release."""
        turns = sorted(turn for turn in self.started if turn.step != self.step_back)
        return {turn.node: turn.step for turn in turns}

    def checks(self, turn: Turn) -> tuple[Check, ...]:
        """Return the checks that follow a node run."""
        options = self.began.options
        if turn.step == self.step_back:
            return ()
        return () if options.noop else self.began.checks.get(turn, ()) + options.checks

    @property
    def commands(self) -> list[str]:
        """The programs that checks run on the controller's machine, sorted."""
        every = [self.began.options.checks, *self.began.checks.values()]
        return sorted({one[0] for checks in every for one in checks if isinstance(one, tuple)})

    @property
    def allowed(self) -> int:
        """How many of the selected nodes may fail."""
        return self.began.options.max_failures.of(len(self.nodes))

    @property
    def waits(self) -> bool:
        """Whether the rollout is paused until an operator decides."""
        return self.paused is not None and self.stopped is None and self.over is None

    @property
    def resumable(self) -> bool:
        """Whether the rollout can be resumed."""
        return self.over is None or self.over.ending is Ending.STOPPED

    def take(self, event: Event) -> None:
        """Apply an event that is in the journal.

        Raises:
            StateError: A node run of the event is not in this rollout (checkpoints are input).
        """
        for turn in _turns(event):
            if turn.node not in self._nodes or not 1 <= turn.step <= self.step_back:
                raise StateError(f"has an event of an unknown run: {turn.step} {turn.node}")
        if isinstance(event, Resumed):
            self._take_resumed(event)
        elif isinstance(event, Skipped):
            self.skipped.update(event.reasons)
        elif isinstance(event, Staged):
            self.serials.update(event.serials)
        elif isinstance(event, Started):
            self.started.update(event.turns)
            self._running.update(turn for turn in event.turns if turn not in self.ends)
        elif isinstance(event, Ended):
            self._take_ended(event)
        elif isinstance(event, Checked):
            self._take_checked(event)
        elif isinstance(event, Looked | Approved | Withdrawn):
            self._take_look(event)
        else:
            self._take_decision(event)

    def _take_ended(self, event: Ended) -> None:
        self.ends.setdefault(event.turn, event)
        if event.foreseen is not None:
            before = self.foreseen.get(event.turn.node)
            self.foreseen[event.turn.node] = together(before, event.foreseen)
        if event.entry is not None:
            self.entries.pop(event.turn.node, None)
            self.entries[event.turn.node] = event.entry
        self._running.discard(event.turn)
        if not self.settled(event.turn):
            self._unchecked.add(event.turn)
        if event.fate is not Fate.SUCCEEDED and event.turn.step != self.step_back:
            self.failed.setdefault(event.turn.node, event)

    def _take_decision(self, event: Event) -> None:
        """Apply an event about the whole rollout."""
        if isinstance(event, Paused):
            self.pauses += 1
            self.paused = event
            self.passed.add(event.point)
        elif isinstance(event, Continued):
            self._go_on()
        elif isinstance(event, Stopped):
            self.stopped = event
        elif isinstance(event, Overtaken):
            self.overtaken = event
        elif isinstance(event, Over):
            self.over = event
        elif isinstance(event, Lasted):
            self.durations.update(event.durations)
            self.usual = {node: median(lasted) for node, lasted in self.durations.items()}

    def _take_look(self, event: Looked | Approved | Withdrawn) -> None:
        if isinstance(event, Looked):
            self._take_looked(event)
        elif isinstance(event, Withdrawn):
            self.started.difference_update(event.turns)
            self._running.difference_update(event.turns)
            for turn in event.turns:
                self.differing.pop(turn, None)
        else:
            self.approved[event.turn] = event
            if (difference := self.differing.pop(event.turn, None)) is not None:
                self.granted[event.turn] = extend(self.may_change(event.turn), difference)
            if not self.differing and self.paused is not None and self.paused.changes:
                self.paused = None

    def _take_looked(self, event: Looked) -> None:
        self.looked[event.turn] = self.look_step(event.turn)
        self._looks[event.turn] += 1
        if event.difference:
            self.differing[event.turn] = self.seen[event.turn] = event.difference
            self.approved.pop(event.turn, None)
            self.cleared.discard(event.turn)
        else:
            self.cleared.add(event.turn)

    def _take_resumed(self, event: Resumed) -> None:
        self.epoch = max(self.epoch + 1, event.epoch)
        self.differing.clear()  # these nodes compare again
        if self.paused is not None and self.paused.changes:
            self.paused = None
        # Resuming a rollout that was over is a decision; resuming after a kill is not.
        if self.over is not None and self.paused is not None:
            self._go_on()
        if self.over is not None:
            self.until = None
        self.over = self.overtaken = None
        if not self.goes_back:  # a rollback continues and keeps its ending
            self.stopped = None

    def _go_on(self) -> None:
        self.paused = None
        self.accepted = frozenset(self.failed)

    def _take_checked(self, event: Checked) -> None:
        self.checked.add(event.turn)
        self._unchecked.discard(event.turn)
        if event.problem:
            if event.turn not in self.ends:
                raise StateError(f"has checks of {event.turn.node} before the end of its run")
            end = replace(self.ends[event.turn], fate=Fate.FAILED, reason=event.problem)
            self.ends[event.turn] = end
            self.failed.setdefault(event.turn.node, end)

    def turns(self, step: int) -> list[Turn]:
        """Return the node runs of a group that are due if nothing stops it, sorted by node.

        Skipped nodes have none, nor nodes that failed in an earlier group.
        """
        return [
            Turn(step, node)
            for node in self.began.groups[step - 1]
            if node not in self.skipped
            and (node not in self.failed or self.failed[node].turn.step >= step)
        ]

    def sections(self, turns: Sequence[Turn]) -> list[list[Turn]]:
        """Return node runs in sections that follow each other, by the places of the nodes."""
        found: dict[str, list[Turn]] = {}
        for turn in turns:
            found.setdefault(self.began.places.get(turn.node, ""), []).append(turn)
        return [found[place] for place in sorted(found)]

    def fates(self) -> dict[NodeName, Fate | None]:
        """Return node → its result; `None` if it has none yet."""
        mine: dict[NodeName, list[Turn]] = {node: [] for node in self.nodes}
        for step, group in enumerate(self.began.groups, 1):
            for node in group:
                mine[node].append(Turn(step, node))
        open_fate = None if self.over is None else Fate.NOT_REACHED
        found: dict[NodeName, Fate | None] = {}
        for node, turns in mine.items():
            if node in self.skipped:
                found[node] = Fate.SKIPPED
            elif (back := self._back(node)) is not None:
                found[node] = back
            elif node in self.failed:
                found[node] = self.failed[node].fate
            elif all(self.settled(turn) for turn in turns):
                found[node] = Fate.SUCCEEDED
            else:
                found[node] = open_fate
        return found

    def _back(self, node: NodeName) -> Fate | None:
        """Return the result of a node's rollback run; `None` if it had none, or is running."""
        turn = Turn(self.step_back, node)
        end = self.ends.get(turn)
        if end is None:
            lost = turn in self.started and self.over is not None
            return Fate.ROLLBACK_FAILED if lost else None
        if end.fate is Fate.NOT_REACHED:
            return None
        return Fate.ROLLED_BACK if end.fate is Fate.SUCCEEDED else Fate.ROLLBACK_FAILED


def _turns(event: Event) -> Sequence[Turn]:
    """Return the node runs of an event."""
    if isinstance(event, Started | Withdrawn):
        return event.turns
    return (event.turn,) if isinstance(event, Ended | Checked | Looked | Approved) else ()
