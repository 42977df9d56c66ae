"""Estimate how long a rollout takes, from the last good runs of its nodes.

There is no clock here: a node that is running counts as one that has just started.
"""

from collections.abc import Sequence

from localpuppet.rollout.execution.events import NodeRun
from localpuppet.rollout.execution.state import RolloutState


def seconds_left(state: RolloutState) -> float | None:
    """Return the estimated seconds until the last node run ends; `None` if unknown.

    Each node counts with the median of its last good runs; pauses and checks count zero. The
    estimate is unknown if a node has no such run, or if the rollout is paused or stopped.
    """
    if state.stopped is not None or state.paused is not None:
        return None
    total = 0.0
    for step in range(1, len(state.began.groups) + 1):
        left = [turn for turn in state.turns(step) if turn not in state.ends]
        if any(turn.node not in state.usual for turn in left):
            return None
        total += _group(state, step, left)
    return total


def _group(state: RolloutState, step: int, left: Sequence[NodeRun]) -> float:
    """Return the estimated seconds for the rest of a group."""
    turns = state.turns(step)
    canaries = set(turns[: state.began.options.canary])
    first = state.sections([turn for turn in left if turn in canaries])
    others = state.sections([turn for turn in left if turn not in canaries])
    return sum(_longest(state, part) for part in first) + sum(
        _some(state, part, total=len(turns)) for part in others
    )


def _some(state: RolloutState, turns: Sequence[NodeRun], *, total: int) -> float:
    """Return the seconds for runs that may be parallel, in a group of `total` nodes."""
    options = state.began.options
    if options.window is not None:
        work = sum(_seconds(state, turn) for turn in turns)
        return max(_longest(state, turns), work / options.window)
    size = len(turns) if options.batch is None else max(options.batch.of(total), 1)
    batches = [turns[start : start + size] for start in range(0, len(turns), size)]
    return sum(_longest(state, batch) for batch in batches)


def _longest(state: RolloutState, turns: Sequence[NodeRun]) -> float:
    return max(_seconds(state, turn) for turn in turns)


def _seconds(state: RolloutState, turn: NodeRun) -> float:
    return state.usual[turn.node]
