"""The states of nodes, node runs and groups in a rollout, in the words that people read.

- Each node, node run and group has exactly one state.
- Before the end of a rollout, a state may be any; after it, every state is final.
- A node run that started and has no result at the end has failed: unknown is no success.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum

from localpuppet.base.formats.names import NodeName
from localpuppet.rollout.execution.events import NodeResult, NodeRun, RolloutEnding
from localpuppet.rollout.execution.state import RolloutState


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
    """The states in a rollout.

    Args:
        state: The state of the rollout; its later events change nothing here.
    """

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
