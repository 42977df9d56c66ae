"""The state of a rollout, derived from its events, and its words.

- The same events give the same state, so a rollout continues from its journal.
- A node run that started once is never started again.
- A node run whose checks failed has failed.
- Each node, node run and group has exactly one state.
- Before the end of a rollout, a state may be any; after it, every state is final.
- A node run that started and has no result at the end has failed: unknown is no success.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from statistics import median

from localpuppet.base.errors import StateError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.inventory.outbox import AwaitedEntry
from localpuppet.node.puppet.changes import PredictedChanges, together
from localpuppet.rollout.events import (
    ChangesApproved,
    ChangesPredicted,
    ChecksEnded,
    Event,
    LastRunsReported,
    NodeResult,
    NodeRun,
    NodeRunEnded,
    NodeRunsStarted,
    NodeRunsWithdrawn,
    NodeRunUnanswered,
    NodesSkipped,
    RolloutBegan,
    RolloutContinued,
    RolloutEnded,
    RolloutEnding,
    RolloutPaused,
    RolloutResumed,
    RolloutStopped,
    RolloutTakenOver,
    StagingEnded,
)
from localpuppet.rollout.rollout_options import OnFailure, UnapprovedChange, extend
from localpuppet.rollout.site import Check


class RolloutState:
    def __init__(self, began: RolloutBegan) -> None:
        self.began = began
        self.epoch = 1
        self._nodes = frozenset(node for group in began.groups for node in group)
        self.skipped: dict[NodeName, str] = {}
        self.durations: dict[NodeName, tuple[float, ...]] = {}  # of its last good runs
        self.previous: Mapping[str, int] = {}  # release → nodes that ran it before the rollout
        self.usual: dict[NodeName, float] = {}  # their median
        self.until = began.options.until
        self.serials: dict[NodeName, int] = {}  # of the release's assignments, once all have it
        self.started: set[NodeRun] = set()
        self.unanswered: set[NodeRun] = set()  # of a rollback, while the node does not answer
        self.ends: dict[NodeRun, NodeRunEnded] = {}
        self.predicted_changes: dict[NodeName, PredictedChanges] = {}  # reported with noop
        self.differing: dict[NodeRun, UnapprovedChange] = {}  # node runs that wait for an approval
        # all differences, also those approved later
        self.seen: dict[NodeRun, UnapprovedChange] = {}
        self.approved: dict[NodeRun, ChangesApproved] = {}
        # approved changes, extended by differences
        self.granted: dict[NodeRun, PredictedChanges] = {}
        self.cleared: set[NodeRun] = set()  # node runs whose changes are approved
        self.looked: dict[NodeRun, int] = {}  # the step of the last comparison before each run
        self._looks: Counter[NodeRun] = Counter()
        self.entries: dict[NodeName, AwaitedEntry] = {}  # of nodes that ran, by their ends
        self.checked: set[NodeRun] = set()
        self.failed: dict[NodeName, NodeRunEnded] = {}
        self.accepted: frozenset[NodeName] = frozenset()  # failed nodes that an operator accepted
        self._running: set[NodeRun] = set()
        self._unchecked: set[NodeRun] = set()
        self.passed: set[str] = set()  # points where the rollout has paused
        self.pauses = 0  # how many so far
        self.paused: RolloutPaused | None = None
        self.stopped: RolloutStopped | None = None
        self.overtaken: RolloutTakenOver | None = None
        self.over: RolloutEnded | None = None
        self.lost: frozenset[NodeName] = frozenset()  # at the end, with an unknown result
        self._makers: dict[NodeName, list[frozenset[NodeName]]] = {}
        for need in began.needs:
            makers = frozenset(need.producers)
            for node in need.consumers:
                self._makers.setdefault(node, []).append(makers)

    @classmethod
    def of(cls, events: Iterable[Event]) -> "RolloutState":
        """Return the state after these events; the first must be `RolloutBegan`. See `take`."""
        iterator = iter(events)
        first = next(iterator, None)
        if not isinstance(first, RolloutBegan):
            raise StateError(
                "does not start with the event that starts a rollout",
                hint="move it away: its process was killed before that",
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
    def running(self) -> list[NodeRun]:
        """The node runs that started and have no result, sorted."""
        return sorted(self._running)

    @property
    def unchecked(self) -> list[NodeRun]:
        """The successful node runs whose checks have not ended, sorted."""
        return sorted(self._unchecked)

    def settled(self, turn: NodeRun) -> bool:
        """Return whether a node run and its checks are over."""
        end = self.ends.get(turn)
        if end is None:
            return False
        return (
            turn in self.checked or end.result is not NodeResult.SUCCEEDED or not self.checks(turn)
        )

    @property
    def step_back(self) -> int:
        """The step of the runs that take nodes back to their previous release."""
        return len(self.began.groups) + 1

    def looks(self, turn: NodeRun) -> bool:
        """Return whether the changes of a node run must be compared before it starts."""
        approved = self.began.approval is None or turn.step == self.step_back
        return not (approved or turn in self.cleared)

    def look_step(self, turn: NodeRun) -> int:
        """Return the step of the next comparison before a node run; each has its own step."""
        earlier = self.epoch - 1 + self._looks[turn]
        return self.step_back + earlier * len(self.began.groups) + turn.step

    def may_change(self, turn: NodeRun) -> PredictedChanges | None:
        """Return the approved changes of a node run, from the rollout and from later approvals."""
        approval = self.began.approval
        before = None if approval is None else approval.nodes.get(turn.node)
        return self.granted.get(turn, before)

    def is_decided(self, turn: NodeRun, step: int) -> bool:
        """Return whether all changes that a node reported in a comparison are approved."""
        waits = turn in self.differing or turn not in self._running
        return self.looked.get(turn) == step and not waits

    def as_it_is(self, event: Event) -> Event:
        """Return an event as it counts now: after a stop, a compared run is withdrawn."""
        if self.stopped is not None and isinstance(event, ChangesPredicted):
            return NodeRunsWithdrawn(node_runs=(event.node_run,))
        return event

    def makers_for(self, node: NodeName) -> Sequence[frozenset[NodeName]]:
        """Return the sets of nodes that produce what a node's components consume."""
        return self._makers.get(node, ())

    @property
    def goes_back(self) -> bool:
        """Whether the nodes that took the release go back to their previous one."""
        ending = None if self.stopped is None else self.stopped.ending
        if self.began.options.on_failure is OnFailure.ROLLBACK and ending is RolloutEnding.FAILED:
            return True
        back = ending is RolloutEnding.ROLLED_BACK
        return back or any(turn.step == self.step_back for turn in self.started)

    @property
    def took(self) -> dict[NodeName, int]:
        """Node → its last started step, for nodes that may have taken the release."""
        turns = sorted(turn for turn in self.started if turn.step != self.step_back)
        return {turn.node: turn.step for turn in turns}

    def checks(self, turn: NodeRun) -> tuple[Check, ...]:
        options = self.began.options
        if turn.step == self.step_back:
            return ()
        return () if options.noop else self.began.checks.get(turn, ()) + options.checks

    @property
    def commands(self) -> list[str]:
        """The programs that checks run on the controller's machine, sorted."""
        every = [self.began.options.checks, *self.began.checks.values()]
        return sorted({key[0] for checks in every for key in checks if isinstance(key, tuple)})

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
        return self.over is None or self.over.ending is RolloutEnding.STOPPED

    def take(self, event: Event) -> None:
        """Apply an event of the journal; an unknown run is an error: checkpoints are input."""
        for turn in _turns(event):
            if turn.node not in self._nodes or not 1 <= turn.step <= self.step_back:
                raise StateError(f"has an event of an unknown run: {turn.step} {turn.node}")
        if isinstance(event, RolloutResumed):
            self._take_resumed(event)
        elif isinstance(event, NodesSkipped):
            self.skipped.update(event.reasons)
        elif isinstance(event, StagingEnded):
            self.serials.update(event.serials)
        elif isinstance(event, NodeRunsStarted | NodeRunUnanswered):
            self._take_started(event)
        elif isinstance(event, NodeRunEnded):
            self._take_ended(event)
        elif isinstance(event, ChecksEnded):
            self._take_checked(event)
        elif isinstance(event, ChangesPredicted | ChangesApproved | NodeRunsWithdrawn):
            self._take_look(event)
        else:
            self._take_decision(event)

    def _take_started(self, event: NodeRunsStarted | NodeRunUnanswered) -> None:
        if isinstance(event, NodeRunUnanswered):
            change = self.unanswered.add if event.problem else self.unanswered.discard
            change(event.node_run)
            return
        self.started.update(event.node_runs)
        self._running.update(turn for turn in event.node_runs if turn not in self.ends)
        for turn in self._running:
            failed = self.failed.get(turn.node)
            if turn.step == self.step_back and failed and failed.result is NodeResult.UNRESPONSIVE:
                self.unanswered.add(turn)

    def _take_ended(self, event: NodeRunEnded) -> None:
        self.ends.setdefault(event.node_run, event)
        if event.predicted_changes is not None:
            before = self.predicted_changes.get(event.node_run.node)
            self.predicted_changes[event.node_run.node] = together(before, event.predicted_changes)
        if event.entry is not None:
            self.entries.pop(event.node_run.node, None)
            self.entries[event.node_run.node] = event.entry
        self._running.discard(event.node_run)
        self.unanswered.discard(event.node_run)
        if not self.settled(event.node_run):
            self._unchecked.add(event.node_run)
        if event.result is not NodeResult.SUCCEEDED and event.node_run.step != self.step_back:
            self.failed.setdefault(event.node_run.node, event)

    def _take_decision(self, event: Event) -> None:
        """Apply an event about the whole rollout."""
        if isinstance(event, RolloutPaused):
            self.pauses += 1
            self.paused = event
            self.passed.add(event.point)
        elif isinstance(event, RolloutContinued):
            self._go_on()
        elif isinstance(event, RolloutStopped):
            self.stopped = event
        elif isinstance(event, RolloutTakenOver):
            self.overtaken = event
        elif isinstance(event, RolloutEnded):
            self.over = event
            self.lost = frozenset(
                turn.node
                for turn in self.started
                if not (self.settled(turn) or self.looks(turn) or turn.step == self.step_back)
            )
        elif isinstance(event, LastRunsReported):
            self.durations.update(event.durations)
            self.previous = self.previous or event.releases
            self.usual = {node: median(lasted) for node, lasted in self.durations.items()}

    def _take_look(self, event: ChangesPredicted | ChangesApproved | NodeRunsWithdrawn) -> None:
        if isinstance(event, ChangesPredicted):
            self._take_looked(event)
        elif isinstance(event, NodeRunsWithdrawn):
            self.started.difference_update(event.node_runs)
            self._running.difference_update(event.node_runs)
            for turn in event.node_runs:
                self.differing.pop(turn, None)
        else:
            self.approved[event.node_run] = event
            if (difference := self.differing.pop(event.node_run, None)) is not None:
                self.granted[event.node_run] = extend(self.may_change(event.node_run), difference)
            if not self.differing and self.paused is not None and self.paused.needs_approval:
                self.paused = None

    def _take_looked(self, event: ChangesPredicted) -> None:
        self.looked[event.node_run] = self.look_step(event.node_run)
        self._looks[event.node_run] += 1
        if event.difference:
            self.differing[event.node_run] = self.seen[event.node_run] = event.difference
            self.approved.pop(event.node_run, None)
            self.cleared.discard(event.node_run)
        else:
            self.cleared.add(event.node_run)

    def _take_resumed(self, event: RolloutResumed) -> None:
        self.epoch = max(self.epoch + 1, event.epoch)
        self.differing.clear()  # these nodes compare again
        if self.paused is not None and self.paused.needs_approval:
            self.paused = None
        # Resuming a rollout that was over is a decision; resuming after a kill is not.
        if self.over is not None and self.paused is not None:
            self._go_on()
        if self.over is not None:
            self.until = None
        self.over = self.overtaken = None
        self.lost = frozenset()
        if not self.goes_back:  # a rollback continues and keeps its ending
            self.stopped = None

    def _go_on(self) -> None:
        if self.paused is None or not self.paused.requested_by:
            self.accepted = frozenset(self.failed)
        self.paused = None

    def _take_checked(self, event: ChecksEnded) -> None:
        self.checked.add(event.node_run)
        self._unchecked.discard(event.node_run)
        if event.problem:
            if event.node_run not in self.ends:
                raise StateError(f"has checks of {event.node_run.node} before the end of its run")
            end = replace(self.ends[event.node_run], result=NodeResult.FAILED, reason=event.problem)
            self.ends[event.node_run] = end
            self.failed.setdefault(event.node_run.node, end)

    def turns(self, step: int) -> list[NodeRun]:
        """Return the node runs of a group that are due if nothing stops it, sorted by node.

        Skipped nodes have none, nor nodes that failed in an earlier group.
        """
        return [
            NodeRun(step, node)
            for node in self.began.groups[step - 1]
            if node not in self.skipped
            and (node not in self.failed or self.failed[node].node_run.step >= step)
        ]

    def sections(self, turns: Sequence[NodeRun]) -> list[list[NodeRun]]:
        """Return node runs in sections that follow each other, by the places of the nodes."""
        runs_by_section: dict[str, list[NodeRun]] = {}
        for turn in turns:
            runs_by_section.setdefault(self.began.places.get(turn.node, ""), []).append(turn)
        return [runs_by_section[place] for place in sorted(runs_by_section)]

    def results(self) -> dict[NodeName, NodeResult | None]:
        """Return node → its result; `None` if it has none yet."""
        mine: dict[NodeName, list[NodeRun]] = {node: [] for node in self.nodes}
        for step, group in enumerate(self.began.groups, 1):
            for node in group:
                mine[node].append(NodeRun(step, node))
        open_result = None if self.over is None else NodeResult.NOT_REACHED
        results: dict[NodeName, NodeResult | None] = {}
        backs = _rollback_states(self)
        for node, turns in mine.items():
            if node in self.skipped:
                results[node] = NodeResult.SKIPPED
            elif backs.get(node) in _RESULT_OF_ROLLBACK:
                results[node] = _RESULT_OF_ROLLBACK[backs[node]]
            elif node in self.failed:
                results[node] = self.failed[node].result
            elif all(self.settled(turn) for turn in turns):
                results[node] = NodeResult.SUCCEEDED
            elif node in self.lost:
                results[node] = NodeResult.UNRESPONSIVE
            else:
                results[node] = open_result
        return results

    @property
    def left(self) -> list[NodeName]:
        """The nodes without a result, sorted."""
        return [node for node, result in self.results().items() if result is None]


def _turns(event: Event) -> Sequence[NodeRun]:
    turn: NodeRun | None = getattr(event, "node_run", None)
    return getattr(event, "node_runs", ()) if turn is None else (turn,)


class ProgressState(StrEnum):
    """A state, in the order in which counts are shown."""

    DONE = "done"
    FAILED = "failed"
    ROLLED_BACK = "rolled back"
    RUNNING = "running"
    WAITING = "waiting"  # its group has started
    NOT_STARTED = "not started"
    NOT_REACHED = "not reached"  # and will not be, unless the rollout is resumed
    SKIPPED = "skipped"


OPEN = (ProgressState.RUNNING, ProgressState.WAITING, ProgressState.NOT_STARTED)
_OF_RESULT = {
    NodeResult.SUCCEEDED: ProgressState.DONE,
    NodeResult.FAILED: ProgressState.FAILED,
    NodeResult.UNRESPONSIVE: ProgressState.FAILED,
    NodeResult.NOT_REACHED: ProgressState.NOT_REACHED,
    NodeResult.SKIPPED: ProgressState.SKIPPED,
    NodeResult.ROLLED_BACK: ProgressState.ROLLED_BACK,
    NodeResult.ROLLBACK_FAILED: ProgressState.FAILED,
}
_OF_ROLLBACK = {
    NodeResult.SUCCEEDED: ProgressState.ROLLED_BACK,
    NodeResult.NOT_REACHED: ProgressState.NOT_REACHED,  # it had not taken the release
}
_RESULT_OF_ROLLBACK = {
    ProgressState.ROLLED_BACK: NodeResult.ROLLED_BACK,
    ProgressState.FAILED: NodeResult.ROLLBACK_FAILED,
}
# A group has the first of these states that one of its node runs has. So it is done if all nodes
# are done that were not skipped.
_OF_GROUP = (
    *OPEN,
    ProgressState.FAILED,
    ProgressState.ROLLED_BACK,
    ProgressState.NOT_REACHED,
    ProgressState.DONE,
    ProgressState.SKIPPED,
)


class ProgressStates:
    def __init__(self, state: RolloutState) -> None:
        self._state = state
        self._ends_soon = bool(state.over or state.stopped or state.goes_back)
        self._begun = {turn.step for turn in (*state.started, *state.ends)}
        self._back = _rollback_states(state)
        self._running = _busy(state)
        waiting = {
            node
            for step, group in enumerate(state.began.groups, 1)
            if step in self._begun
            for node in group
        }
        self.nodes: Mapping[NodeName, ProgressState] = {
            node: self._node(node, result, waits=node in waiting)
            for node, result in state.results().items()
        }

    def counts(self) -> dict[str, int]:
        """Return state → number of nodes, without zeros."""
        return count_states(self.nodes.values())

    def of_run(self, turn: NodeRun) -> ProgressState:
        """Return the state of a node run; a run that a rollback undoes has the rollback's state."""
        state, end = self._state, self._state.ends.get(turn)
        if turn.step == state.step_back:
            return self._back.get(turn.node, ProgressState.NOT_REACHED)
        if turn not in state.started and end is None:
            return self._of_later_run(turn)
        back = self._back.get(turn.node, ProgressState.NOT_REACHED)
        if back is not ProgressState.NOT_REACHED:
            return back
        if end is None and state.looks(turn):
            differs = turn in state.differing
            open_state = ProgressState.WAITING if differs else ProgressState.RUNNING
            return ProgressState.NOT_REACHED if state.over is not None else open_state
        if end is not None and end.result is not NodeResult.SUCCEEDED:
            return ProgressState.FAILED
        if not state.settled(turn):
            return ProgressState.RUNNING if state.over is None else ProgressState.FAILED
        return ProgressState.DONE

    def _of_later_run(self, turn: NodeRun) -> ProgressState:
        """Return the state of a node run that has not started."""
        if turn.node in self._state.skipped:
            return ProgressState.SKIPPED
        if self._ends_soon or turn.node in self._state.failed:
            return ProgressState.NOT_REACHED
        return ProgressState.WAITING if turn.step in self._begun else ProgressState.NOT_STARTED

    def _node(self, node: NodeName, result: NodeResult | None, *, waits: bool) -> ProgressState:
        if self._state.over is None and node in self._running:
            return self._running[node]
        if self._back.get(node) in OPEN:
            return self._back[node]
        if result is not None:
            return _OF_RESULT[result]
        if self._ends_soon:
            return ProgressState.NOT_REACHED
        return ProgressState.WAITING if waits else ProgressState.NOT_STARTED


def of_group(states: Collection[ProgressState]) -> ProgressState:
    """Return the state of a group from the states of its node runs, at least one."""
    return next(state for state in _OF_GROUP if state in states)


def word_of_ending(ending: RolloutEnding, counts: Mapping[str, int]) -> str:
    """Return why a rollout is over, in words: it is `done` only if no node failed."""
    failed = ending is RolloutEnding.DONE and ProgressState.FAILED in counts
    return f"{ending} with failures" if failed else str(ending)


def count_states(states: Collection[ProgressState]) -> dict[str, int]:
    """Return state → how often it occurs, in the order of `ProgressState`, without zeros."""
    listed = list(states)
    return {str(state): listed.count(state) for state in ProgressState if state in listed}


def _busy(state: RolloutState) -> dict[NodeName, ProgressState]:
    """Return the nodes with a started run that has not ended."""
    waiting = {*state.differing, *state.unanswered}
    busy = {turn.node: ProgressState.WAITING for turn in waiting}
    turns = [turn for turn in state.running if turn not in waiting]
    nodes = [turn.node for turn in (*turns, *state.unchecked)]
    return busy | dict.fromkeys(nodes, ProgressState.RUNNING)


def _rollback_states(state: RolloutState) -> dict[NodeName, ProgressState]:
    """Return node → the state of its rollback run; empty unless the rollout rolls back.

    `NOT_REACHED` is the state of a node that had not taken the release, or was not asked.
    """
    states: dict[NodeName, ProgressState] = {}
    for node in state.took if state.goes_back else ():
        turn = NodeRun(state.step_back, node)
        end, started = state.ends.get(turn), turn in state.started
        if end is not None:
            states[node] = _OF_ROLLBACK.get(end.result, ProgressState.FAILED)
        elif state.over is not None:
            states[node] = ProgressState.FAILED if started else ProgressState.NOT_REACHED
        else:
            asked = started and turn not in state.unanswered
            states[node] = ProgressState.RUNNING if asked else ProgressState.WAITING
    return states
