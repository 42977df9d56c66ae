"""What a rollout does next.

Owns: canaries, batches, windows, and when failures end a rollout. Refuses to know: how a node is
asked, what is written down, time.

Rules:

- Groups follow each other: a group starts when the one before it has no turn left.
- The canaries of a group, its first nodes by name, are a closed batch before the others; where one
  does not succeed, the rollout ends.
- Where nodes have places, a group goes through them one after the other, in the order of their
  names: its canaries first, and then batches or a window within each.
- A batch is closed: when all of it have ended, they are checked, and then the next one starts. A
  window moves on with each end, and with the checks that follow it.
- Where failures are to pause the rollout, nothing more starts until somebody says that it goes on;
  what failed until then is accepted, and the next failure beyond the number pauses it again.
- Where a node would change what was not approved, nothing more starts until somebody approves that
  or stops the rollout; what is on ends. Who waits for it then has not been reached.
- `max_failures` counts nodes over the whole rollout: failed or silent, canaries too, each once.
  Beyond it no more turns start; those that are on run to their ends, and are checked.
- Where failures are to take a release back, the nodes that may have taken it go back when nothing
  is on any more, the last group first. A node that was silent holds up no other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from localpuppet.rollout.execution.changes.approval import MAX_ALL
from localpuppet.rollout.execution.events import Fate, Paused, Turn
from localpuppet.rollout.execution.options import OnFailure, PauseAfter
from localpuppet.rollout.execution.state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """What is to be done now.

    Attributes:
        start: Start these turns.
        check: Have the checks of these done, if that has not begun.
        pause: Say that no more are started until somebody has decided.
        stop: Say that no more are started, and why; empty where that is not so, or was said.
        withdraw: Say that these turns, which were started, are not taken.
        over: Whether nothing is on, and nothing will be started any more.
    """

    start: tuple[Turn, ...] = ()
    check: tuple[Turn, ...] = ()
    pause: Paused | None = None
    stop: str = ""
    withdraw: tuple[Turn, ...] = ()
    over: bool = False


def decide(state: State) -> Next:
    """Return what is to be done next."""
    if state.stopped is not None or state.goes_back:
        return _ending(state)
    if state.paused is not None:
        return Next(check=tuple(state.unchecked))
    if sum(one.total for one in state.foreseen.values()) > MAX_ALL:
        why = f"the nodes would change more than {MAX_ALL} properties: look at fewer of them"
        return Next(stop=why)
    if why := too_much(state):
        if state.began.options.on_failure is OnFailure.PAUSE:
            return Next(pause=Paused(why=why))
        return Next(stop=why)
    if state.differing:
        return Next(pause=Paused(why=_not_approved(state), changes=True))
    for step in range(1, len(state.began.groups) + 1):
        turns = state.turns(step)
        if not all(state.settled(turn) for turn in turns):
            due = _due(state, turns)
            pause = _pause(state, step, turns) if due.start else None
            return due if pause is None else Next(pause=pause)
    return Next(over=not state.running)


def _ending(state: State) -> Next:
    """Return what is to be done where no more nodes start."""
    if state.differing:
        return Next(withdraw=tuple(sorted(state.differing)))
    check = tuple(state.unchecked)
    if check or any(turn.step != state.step_back for turn in state.running):
        return Next(check=check)
    return _back(state) if state.goes_back else Next(over=True)


def _back(state: State) -> Next:
    """Return which nodes go back now, once all others have come to their ends."""
    silent = {node for node, end in state.failed.items() if end.fate is Fate.SILENT}
    took = state.took
    for step in sorted(set(took.values()), reverse=True):
        turns = [Turn(state.step_back, node) for node, last in took.items() if last == step]
        start = tuple(turn for turn in turns if turn not in state.started)
        if start:
            return Next(start=start)
        if any(turn not in state.ends and turn.node not in silent for turn in turns):
            return Next()
    return Next(over=not state.running)


def too_much(state: State) -> str:
    """Return why failures end the rollout, or pause it; empty where they do not."""
    canary = state.began.options.canary
    new = {node: end for node, end in state.failed.items() if node not in state.accepted}
    for node, end in sorted(new.items()):
        if canary and end.turn in state.turns(end.turn.step)[:canary]:
            return f"{node}, a canary, {_did(str(end.fate))}"
    failed = len(state.failed)
    if new and failed > state.allowed:
        nodes = "1 node" if failed == 1 else f"{failed} nodes"
        return f"{nodes} failed, and {state.allowed or 'none'} may"
    return ""


def _not_approved(state: State) -> str:
    turn = min(state.differing)
    return f"{turn.node} {state.differing[turn].why}"


def _pause(state: State, step: int, turns: Sequence[Turn]) -> Paused | None:
    """Return the pause that comes before more of a group starts, if there is one."""
    options = state.began.options
    begun = [turn for turn in turns if turn in state.started]
    why = ""
    if not begun:
        if PauseAfter.GROUPS in options.pause and state.started:
            why = f"before group {step}, as was asked for"
    elif PauseAfter.CANARIES in options.pause and begun == list(turns[: options.canary]):
        why = f"after the canaries of group {step}, as was asked for"
    return Paused(why=why, point=why) if why and why not in state.passed else None


def _did(fate: str) -> str:
    return "is silent" if fate == "silent" else fate


def _due(state: State, turns: Sequence[Turn]) -> Next:
    """Return what is to be done in a group that is not over."""
    canary = state.began.options.canary
    for canaries in state.sections(turns[:canary]):
        if not all(state.settled(turn) for turn in canaries):
            return _closed(state, canaries)
    for others in state.sections(turns[canary:]):
        if not all(state.settled(turn) for turn in others):
            return _some(state, others, total=len(turns))
    return Next()


def _some(state: State, others: Sequence[Turn], *, total: int) -> Next:
    """Return what is to be done of turns that are free to run together, of a group of `total`."""
    options = state.began.options
    if options.window is not None:
        on = sum(turn in state.started and not state.settled(turn) for turn in others)
        waiting = [turn for turn in others if turn not in state.started]
        return Next(
            start=tuple(waiting[: max(options.window - on, 0)]),
            check=tuple(turn for turn in others if _ended_unchecked(state, turn)),
        )
    size = len(others)
    if options.batch is not None:
        size = max(options.batch.of(total), 1)
    for first in range(0, len(others), size):
        batch = others[first : first + size]
        if not all(state.settled(turn) for turn in batch):
            return _closed(state, batch)
    return Next()


def _closed(state: State, batch: Sequence[Turn]) -> Next:
    """Return what is to be done in a batch that is not over: all run, then all are checked."""
    if not all(turn in state.ends for turn in batch):
        return Next(start=tuple(turn for turn in batch if turn not in state.started))
    return Next(check=tuple(turn for turn in batch if not state.settled(turn)))


def _ended_unchecked(state: State, turn: Turn) -> bool:
    return turn in state.ends and not state.settled(turn)
