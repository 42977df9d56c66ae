"""Where a rollout is: what its events, one after the other, come to.

Owns: what follows from an event. Refuses to know: what is to be done next (`deciding`), time.

Invariants: the same events give the same state, so a rollout that is read from its journal goes on
as if it had never ended; a turn that was started once is never started again; a turn whose checks
failed has failed.
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
        self.usual: dict[NodeName, float] = {}  # the median of these
        self.until = began.options.until
        self.serials: dict[NodeName, int] = {}  # of the release's assignment, once all have it
        self.started: set[Turn] = set()
        self.ends: dict[Turn, Ended] = {}
        self.foreseen: dict[NodeName, Foreseen] = {}  # with noop: what would change
        self.differing: dict[Turn, Difference] = {}  # turns that wait for somebody's approval
        self.seen: dict[Turn, Difference] = {}  # what was not approved, also if it is by now
        self.approved: dict[Turn, Approved] = {}
        self.granted: dict[Turn, Foreseen] = {}  # what turns may change by such approvals
        self.cleared: set[Turn] = set()  # turns that may run: what they change is approved
        self.looked: dict[Turn, int] = {}  # the step of the last look before each turn
        self._looks: Counter[Turn] = Counter()
        self.entries: dict[NodeName, Awaited] = {}  # of those that ran, who ended last at the end
        self.checked: set[Turn] = set()
        self.failed: dict[NodeName, Ended] = {}
        self.accepted: frozenset[NodeName] = frozenset()  # those that failed, and may
        self._running: set[Turn] = set()
        self._unchecked: set[Turn] = set()
        self.passed: set[str] = set()  # points at which the rollout has paused
        self.pauses = 0  # until now
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
        """Return the state that these events come to.

        Raises:
            StateError: The first of them does not begin a rollout, or see `take`.
        """
        iterator = iter(events)
        first = next(iterator, None)
        if not isinstance(first, Began):
            raise StateError(
                "does not begin with the beginning of a rollout",
                hint="who made it was killed before that; move it away",
            )
        state = cls(first)
        for event in iterator:
            state.take(event)
        return state

    @property
    def nodes(self) -> tuple[NodeName, ...]:
        """The nodes that were selected, sorted."""
        return tuple(sorted(self._nodes))

    @property
    def running(self) -> list[Turn]:
        """The turns that were started and of which no end is known, sorted."""
        return sorted(self._running)

    @property
    def unchecked(self) -> list[Turn]:
        """The turns that ended well and whose checks are not done, sorted."""
        return sorted(self._unchecked)

    def settled(self, turn: Turn) -> bool:
        """Return whether a turn is over, with its checks."""
        end = self.ends.get(turn)
        if end is None:
            return False
        return turn in self.checked or end.fate is not Fate.SUCCEEDED or not self.checks(turn)

    @property
    def step_back(self) -> int:
        """The step of the runs with which nodes go back to what they ran before."""
        return len(self.began.groups) + 1

    def looks(self, turn: Turn) -> bool:
        """Return whether it is yet to be seen what a turn would change, before it is taken."""
        approved = self.began.approval is None or turn.step == self.step_back
        return not (approved or turn in self.cleared)

    def look_step(self, turn: Turn) -> int:
        """Return the step of the next look before a turn: no two looks have the same step."""
        earlier = self.epoch - 1 + self._looks[turn]
        return self.step_back + earlier * len(self.began.groups) + turn.step

    def may_change(self, turn: Turn) -> Foreseen | None:
        """Return what was approved of a turn: with the rollout, and while the turn waited."""
        approval = self.began.approval
        before = None if approval is None else approval.nodes.get(turn.node)
        return self.granted.get(turn, before)

    def is_decided(self, turn: Turn, step: int) -> bool:
        """Return whether all that a node saw with a step of its look is approved."""
        waits = turn in self.differing or turn not in self._running
        return self.looked.get(turn) == step and not waits

    def as_it_is(self, event: Event) -> Event:
        """Return what an event is where the rollout ends: who may run by now does not run."""
        ends = self.stopped is not None
        return Withdrawn(turns=(event.turn,)) if ends and isinstance(event, Looked) else event

    def makers_for(self, node: NodeName) -> Sequence[frozenset[NodeName]]:
        """Return the nodes that produce what a node's components need, in one or more sets."""
        return self._makers.get(node, ())

    @property
    def goes_back(self) -> bool:
        """Whether the nodes that took the release are to go back."""
        ending = None if self.stopped is None else self.stopped.ending
        if self.began.options.on_failure is OnFailure.ROLLBACK and ending is Ending.FAILURES:
            return True
        back = ending is Ending.TAKEN_BACK
        return back or any(turn.step == self.step_back for turn in self.started)

    @property
    def took(self) -> dict[NodeName, int]:
        """The nodes that may have taken the release, each with the last step that it started."""
        turns = sorted(turn for turn in self.started if turn.step != self.step_back)
        return {turn.node: turn.step for turn in turns}

    def checks(self, turn: Turn) -> tuple[Check, ...]:
        """Return the checks that follow a turn."""
        options = self.began.options
        if turn.step == self.step_back:
            return ()
        return () if options.noop else self.began.checks.get(turn, ()) + options.checks

    @property
    def commands(self) -> list[str]:
        """The programs that its checks run on the machine of whoever goes on with it, sorted."""
        every = [self.began.options.checks, *self.began.checks.values()]
        return sorted({one[0] for checks in every for one in checks if isinstance(one, tuple)})

    @property
    def allowed(self) -> int:
        """How many nodes may fail: of those that were selected at the start."""
        return self.began.options.max_failures.of(len(self.nodes))

    @property
    def waits(self) -> bool:
        """Whether it is paused, and somebody's word is needed."""
        return self.paused is not None and self.stopped is None and self.over is None

    @property
    def resumable(self) -> bool:
        """Whether there is something to go on with."""
        return self.over is None or self.over.ending is Ending.STOPPED

    def take(self, event: Event) -> None:
        """Take an event that is in the journal.

        Raises:
            StateError: It is of a run that this rollout does not have; heads come from others.
        """
        for turn in _turns(event):
            if turn.node not in self._nodes or not 1 <= turn.step <= self.step_back:
                raise StateError(f"tells of a run that it does not have: {turn.step} {turn.node}")
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
        """Take an event that is about the whole rollout."""
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
        self.differing.clear()  # their nodes are looked at again
        if self.paused is not None and self.paused.changes:
            self.paused = None
        # Whoever resumes what was over has decided: not so who goes on after a kill.
        if self.over is not None and self.paused is not None:
            self._go_on()
        if self.over is not None:
            self.until = None
        self.over = self.overtaken = None
        if not self.goes_back:  # else it goes on with that, and ends as it was to end
            self.stopped = None

    def _go_on(self) -> None:
        self.paused = None
        self.accepted = frozenset(self.failed)

    def _take_checked(self, event: Checked) -> None:
        self.checked.add(event.turn)
        self._unchecked.discard(event.turn)
        if event.problem:
            if event.turn not in self.ends:
                raise StateError(f"tells of checks of {event.turn.node} before the end of its run")
            end = replace(self.ends[event.turn], fate=Fate.FAILED, reason=event.problem)
            self.ends[event.turn] = end
            self.failed.setdefault(event.turn.node, end)

    def turns(self, step: int) -> list[Turn]:
        """Return the turns of a group that are taken if nothing stops it, sorted by node.

        Nodes that were skipped have none, nor those that failed in an earlier group.
        """
        return [
            Turn(step, node)
            for node in self.began.groups[step - 1]
            if node not in self.skipped
            and (node not in self.failed or self.failed[node].turn.step >= step)
        ]

    def sections(self, turns: Sequence[Turn]) -> list[list[Turn]]:
        """Return turns in those sections that run one after the other, by the places of nodes."""
        found: dict[str, list[Turn]] = {}
        for turn in turns:
            found.setdefault(self.began.places.get(turn.node, ""), []).append(turn)
        return [found[place] for place in sorted(found)]

    def fates(self) -> dict[NodeName, Fate | None]:
        """Return how the part of each node ended; `None` where that is open."""
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
        """Return how a node's way back ended; `None` where it had none, or is on it."""
        turn = Turn(self.step_back, node)
        end = self.ends.get(turn)
        if end is None:
            lost = turn in self.started and self.over is not None
            return Fate.ROLLBACK_FAILED if lost else None
        if end.fate is Fate.NOT_REACHED:
            return None
        return Fate.ROLLED_BACK if end.fate is Fate.SUCCEEDED else Fate.ROLLBACK_FAILED


def _turns(event: Event) -> Sequence[Turn]:
    """Return the turns that an event is about."""
    if isinstance(event, Started | Withdrawn):
        return event.turns
    return (event.turn,) if isinstance(event, Ended | Checked | Looked | Approved) else ()
