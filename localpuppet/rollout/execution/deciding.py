"""Decide what a rollout does next, and what would exceed its deadline.

- Groups run one after the other: a group starts when the previous group has no node run left.
- The canaries of a group (its first nodes by name) are a closed batch before the others. If one
  fails, the rollout ends.
- If nodes have places, a group goes through its places in name order: its canaries first, then
  batches or a window within each place.
- A batch is closed: when all its runs have ended, the nodes are checked, then the next batch
  starts. A window advances with each node that has ended and passed its checks.
- If failures pause the rollout, nothing starts until an operator continues it. That accepts the
  failures so far; the next failure beyond the limit pauses it again.
- If a node would change something that was not approved, nothing starts until an operator
  approves that or stops the rollout. Running nodes finish; waiting ones count as not reached.
- `max_failures` counts failed and unresponsive nodes over the whole rollout, canaries too, each
  once. Beyond it no node run starts; running ones finish and are checked.
- If failures roll the release back, the nodes that may have taken it go back when no run is left,
  the last group first. An unresponsive node delays no other.

Forms:

    2026-11-22T06:00+01:00
    2026-11-22 06:00 Europe/Berlin
    06:00 Europe/Berlin               the next time that clocks there show it
"""

import re
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.times import show_duration
from localpuppet.base.value import Value
from localpuppet.rollout.execution.approval import MAX_ALL
from localpuppet.rollout.execution.events import NodeResult, NodeRun, RolloutPaused
from localpuppet.rollout.execution.options import OnFailure, PauseAfter
from localpuppet.rollout.execution.state import RolloutState


class NextAction(Value):
    """What the rollout does now.

    Attributes:
        start: Start these node runs.
        check: Start the checks of these node runs, unless they have started.
        pause: Record this pause.
        stop: Record that no further nodes start, for this reason; empty for no stop.
        withdraw: Record that these node runs, although started, will not happen.
        over: Whether nothing is running and nothing will start.
    """

    start: tuple[NodeRun, ...] = ()
    check: tuple[NodeRun, ...] = ()
    pause: RolloutPaused | None = None
    stop: str = ""
    withdraw: tuple[NodeRun, ...] = ()
    over: bool = False


def decide(state: RolloutState) -> NextAction:
    """Return what the rollout does next."""
    if state.stopped is not None or state.goes_back:
        return _ending(state)
    if state.paused is not None:
        return NextAction(check=tuple(state.unchecked))
    if sum(predicted.total for predicted in state.predicted_changes.values()) > MAX_ALL:
        why = f"the nodes would change more than {MAX_ALL} properties (select fewer nodes)"
        return NextAction(stop=why)
    if why := too_much(state):
        if state.began.options.on_failure is OnFailure.PAUSE:
            return NextAction(pause=RolloutPaused(reason=why))
        return NextAction(stop=why)
    if state.differing:
        return NextAction(pause=RolloutPaused(reason=_not_approved(state), needs_approval=True))
    for step in range(1, len(state.began.groups) + 1):
        turns = state.turns(step)
        if not all(state.settled(turn) for turn in turns):
            due = _due(state, turns)
            pause = _pause(state, step, turns) if due.start else None
            return due if pause is None else NextAction(pause=pause)
    return NextAction(over=not state.running)


def _ending(state: RolloutState) -> NextAction:
    """Return the next action of a rollout that starts no further nodes."""
    if state.differing:
        return NextAction(withdraw=tuple(sorted(state.differing)))
    check = tuple(state.unchecked)
    if check or any(turn.step != state.step_back for turn in state.running):
        return NextAction(check=check)
    return _back(state) if state.goes_back else NextAction(over=True)


def _back(state: RolloutState) -> NextAction:
    """Return the nodes that go back now, after all other runs have ended."""
    unresponsive = {
        node for node, end in state.failed.items() if end.result is NodeResult.UNRESPONSIVE
    }
    took = state.took
    for step in sorted(set(took.values()), reverse=True):
        turns = [NodeRun(state.step_back, node) for node, last in took.items() if last == step]
        start = tuple(turn for turn in turns if turn not in state.started)
        if start:
            return NextAction(start=start)
        if any(turn not in state.ends and turn.node not in unresponsive for turn in turns):
            return NextAction()
    return NextAction(over=not state.running)


def too_much(state: RolloutState) -> str:
    """Return why failures end or pause the rollout; empty if they do not."""
    canary = state.began.options.canary
    new = {node: end for node, end in state.failed.items() if node not in state.accepted}
    for node, end in sorted(new.items()):
        if canary and end.node_run in state.turns(end.node_run.step)[:canary]:
            return f"{node}, a canary, {_did(end.result)}"
    failed = len(state.failed)
    if new and failed > state.allowed:
        nodes = "1 node" if failed == 1 else f"{failed} nodes"
        return f"{nodes} failed; {state.allowed or 'none'} may fail"
    return ""


def _not_approved(state: RolloutState) -> str:
    turn = min(state.differing)
    return f"{turn.node} {state.differing[turn].reason}"


def _pause(state: RolloutState, step: int, turns: Sequence[NodeRun]) -> RolloutPaused | None:
    """Return the pause that is due before more nodes of a group start; `None` for none."""
    options = state.began.options
    begun = [turn for turn in turns if turn in state.started]
    why = ""
    if not begun:
        if PauseAfter.GROUPS in options.pause and state.started:
            why = f"before group {step}, as requested"
    elif PauseAfter.CANARIES in options.pause and begun == list(turns[: options.canary]):
        why = f"after the canaries of group {step}, as requested"
    return RolloutPaused(reason=why, point=why) if why and why not in state.passed else None


def _did(result: NodeResult) -> str:
    return f"is {result}" if result is NodeResult.UNRESPONSIVE else str(result)


def _due(state: RolloutState, turns: Sequence[NodeRun]) -> NextAction:
    """Return the next action in a group that is not over."""
    canary = state.began.options.canary
    for canaries in state.sections(turns[:canary]):
        if not all(state.settled(turn) for turn in canaries):
            return _closed(state, canaries)
    for others in state.sections(turns[canary:]):
        if not all(state.settled(turn) for turn in others):
            return _some(state, others, total=len(turns))
    return NextAction()


def _some(state: RolloutState, others: Sequence[NodeRun], *, total: int) -> NextAction:
    """Return the next action for runs that may be parallel, in a group of `total` nodes."""
    options = state.began.options
    if options.window is not None:
        on = sum(turn in state.started and not state.settled(turn) for turn in others)
        waiting = [turn for turn in others if turn not in state.started]
        return NextAction(
            start=tuple(waiting[: max(options.window - on, 0)]),
            check=tuple(turn for turn in others if turn in state.ends and not state.settled(turn)),
        )
    size = len(others)
    if options.batch is not None:
        size = max(options.batch.of(total), 1)
    for first in range(0, len(others), size):
        batch = others[first : first + size]
        if not all(state.settled(turn) for turn in batch):
            return _closed(state, batch)
    return NextAction()


def _closed(state: RolloutState, batch: Sequence[NodeRun]) -> NextAction:
    """Return the next action in a batch that is not over: all run, then all are checked."""
    if not all(turn in state.ends for turn in batch):
        return NextAction(start=tuple(turn for turn in batch if turn not in state.started))
    return NextAction(check=tuple(turn for turn in batch if not state.settled(turn)))


_LOCAL = re.compile(
    r"(?:([0-9]{4}-[0-9]{2}-[0-9]{2})[ T])?([0-9]{1,2}:[0-9]{2}) +([A-Za-z0-9_+/-]{1,64})\Z"
)
_HINT = "write it with a zone: 2026-11-22T06:00+01:00, or '06:00 Europe/Berlin'"


def parse_until(text: str, *, now: datetime, where: str) -> datetime:
    """Parse a deadline and return it in UTC.

    If clocks show the time twice because they are set back, the earlier one counts.

    Raises:
        InvalidInputError: It is not a time, has no zone, is skipped by clocks, or is in the past.
    """
    end = _parse(text, now=now, where=where)
    if end <= now:
        raise InvalidInputError("is in the past", where=where)
    return end


def _parse(text: str, *, now: datetime, where: str) -> datetime:
    local = _LOCAL.match(text)
    if local is None:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            raise InvalidInputError("is not a time", where=where, hint=_HINT) from error
        if moment.tzinfo is None:
            raise InvalidInputError("has no time zone", where=where, hint=_HINT)
        return moment.astimezone(UTC)
    date, time, name = local.groups()
    try:
        zone = ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidInputError(
            f"the zone {name!r} is unknown on this machine", where=where, hint=_HINT
        ) from error
    today = now.astimezone(zone).date().isoformat()
    end = _moment(date or today, time, zone, where)
    if date is None and end <= now:
        tomorrow = now.astimezone(zone).date() + timedelta(days=1)
        end = _moment(tomorrow.isoformat(), time, zone, where)
    return end


def _moment(date: str, time: str, zone: ZoneInfo, where: str) -> datetime:
    try:
        wall = datetime.fromisoformat(f"{date}T{time:0>5}").replace(tzinfo=zone)
    except ValueError as error:
        raise InvalidInputError("is not a time", where=where, hint=_HINT) from error
    moment = wall.astimezone(UTC)
    if moment.astimezone(zone).replace(tzinfo=None) != wall.replace(tzinfo=None):
        raise InvalidInputError(
            f"{date} {time} does not exist in {zone.key}: clocks are set forward then", where=where
        )
    return moment


def late(state: RolloutState, turns: Collection[NodeRun], now: datetime) -> str:
    """Return why node runs may not start any more, one line; empty if they may.

    They are late if the longest of their nodes' last good runs, started now, would end after the
    deadline. A node without a good run counts as zero.
    """
    until = state.until
    if until is None or not turns:
        return ""
    shown = until.strftime("%Y-%m-%d %H:%M UTC")
    if now >= until:
        return f"it is {shown}"
    last = {turn.node: state.durations.get(turn.node, (0.0,))[0] for turn in turns}
    node = max(sorted(last), key=last.__getitem__)
    if now + timedelta(seconds=last[node]) <= until:
        return ""
    return (
        f"the last run of {node} took {show_duration(last[node])}, which is longer than to {shown}"
    )
