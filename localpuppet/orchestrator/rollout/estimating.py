"""How long a rollout will take yet, by what the last good runs of its nodes took.

Owns: the estimate. Refuses to know: clocks; a run that is on counts as one that has just begun.
"""

from collections.abc import Sequence
from statistics import median

from localpuppet.orchestrator.rollout.events import Turn
from localpuppet.orchestrator.rollout.state import State


def seconds_left(state: State) -> float | None:
    """Return about how many seconds the turns that are left take; `None` where that is unknown.

    A node takes the median of its last good runs; pauses and checks take nothing. It is unknown
    where a node has no such run, or the rollout starts no more nodes.
    """
    if state.stopped is not None or state.paused is not None:
        return None
    total = 0.0
    for step in range(1, len(state.began.groups) + 1):
        left = [turn for turn in state.turns(step) if turn not in state.ends]
        if any(turn.node not in state.durations for turn in left):
            return None
        total += _group(state, step, left)
    return total


def _group(state: State, step: int, left: Sequence[Turn]) -> float:
    """Return how long the rest of a group takes."""
    options = state.began.options
    takes = {turn: median(state.durations[turn.node]) for turn in left}
    canaries = set(state.turns(step)[: options.canary])
    first = max((takes[turn] for turn in left if turn in canaries), default=0.0)
    others = [turn for turn in left if turn not in canaries]
    if options.window is not None:
        longest = max((takes[turn] for turn in others), default=0.0)
        return first + max(longest, sum(takes[turn] for turn in others) / options.window)
    size = len(others)
    if options.batch is not None:
        size = options.batch.of(len(state.turns(step)))
    size = max(size, 1)
    batches = [others[start : start + size] for start in range(0, len(others), size)]
    return first + sum(max(takes[turn] for turn in batch) for batch in batches)
