"""A rollout as people see it: one value that terminal, HTML report and dashboard show.

There is no clock here: a node that is running counts as one that has just started.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType

from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import shown_names
from localpuppet.base.formats.times import parse_time, show_duration
from localpuppet.base.value import Value
from localpuppet.fleet.triggers.cause import succeeded
from localpuppet.rollout.events import (
    NodeResult,
    NodeRun,
    NodeRunEnded,
)
from localpuppet.rollout.rollout_options import describe_options
from localpuppet.rollout.rollout_report import ELSEWHERE, INTERRUPTED, RolloutReport
from localpuppet.rollout.state import (
    OPEN,
    ProgressState,
    ProgressStates,
    RolloutState,
    count_states,
    of_group,
)


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


LONG = 10  # seconds by which a node run may exceed its usual duration
_GOOD, _BAD, _WARN, _ACTIVE = "good", "bad", "warn", "active"
_TONES = {
    "done": _GOOD,
    "failed": _BAD,
    "damaged": _BAD,
    "interrupted": _BAD,
    "done with failures": _WARN,
    "rolled back": _WARN,
    "not reached": _WARN,
    "skipped": _WARN,
    "paused": _WARN,
    "stopped": _WARN,
    "not ready": _WARN,
    "taken over": _WARN,
    "running": _ACTIVE,
}
QUIET = "quiet"


def tone_of(word: str) -> str:
    """Return the tone of a state of a node, a group or a rollout.

    It is `good`, `bad`, `warn`, `active` or `quiet`; each surface has a colour for each.
    """
    return _TONES.get(word, QUIET)


class NodeRunView(Value):
    """A node in a group.

    Attributes:
        detail: What the state does not say, such as `changed` or `unresponsive`; may be empty.
        reason: Why it did not succeed, one line; may be empty.
        run: The id of Puppet's run, or empty.
        started: When the controller asked for the run, UTC.
        ended: When its result arrived, UTC.
    """

    node_run: NodeRun
    state: ProgressState
    detail: str
    reason: str
    run: str
    started: datetime | None
    ended: datetime | None

    @property
    def node(self) -> str:
        """The name of the node."""
        return self.node_run.node

    @property
    def text(self) -> str:
        """The state with its detail."""
        return f"{self.state}, {self.detail}" if self.detail else str(self.state)

    @property
    def seconds(self) -> float | None:
        """The seconds from the request to the result; `None` before that."""
        if self.started is None or self.ended is None:
            return None
        return (self.ended - self.started).total_seconds()


class GroupView(Value):
    """Nodes that may run at the same time.

    Attributes:
        number: Its number, from 1; the number of groups plus 1 for the runs of a rollback.
    """

    number: int
    runs: Sequence[NodeRunView]

    @property
    def state(self) -> ProgressState:
        """The state of the group."""
        return of_group({run.state for run in self.runs})

    @property
    def counts(self) -> Mapping[str, int]:
        """State → number of its nodes, without zeros."""
        return count_states([run.state for run in self.runs])


class WaitingFor(Value):
    """What a rollout waits for.

    Attributes:
        what: Nodes, or an operator and their choices.
        until: When the wait ends by itself, UTC; `None` if it does not.
    """

    what: str
    until: datetime | None = None


class RolloutView(Value):
    """A rollout as people see it.

    Attributes:
        counts: State → number of nodes, without zeros.
        groups: Its groups, in order.
        rollback: The runs that take nodes back to their previous release; `None` without any.
        release: The release that it delivers; empty if nodes run what they have.
        options: The options in words, without defaults.
        seconds: How long it has been running, or ran.
        left: The estimated time left, in words; empty if there is nothing to estimate.
        waiting: What it waits for; `None` if it is over, or continued elsewhere.
    """

    report: RolloutReport
    counts: Mapping[str, int]
    groups: tuple[GroupView, ...]
    rollback: GroupView | None
    release: str
    options: tuple[str, ...]
    seconds: float
    left: str
    waiting: WaitingFor | None

    @classmethod
    def of(cls, report: RolloutReport, now: datetime) -> "RolloutView":
        """Return the view of a rollout.

        Args:
            report: The rollout.
            now: The time, UTC.
        """
        state, states = report.state, ProgressStates(report.state)
        back = sorted(state.took) if state.goes_back else []
        began = parse_time(report.began)
        ended = now if report.ended is None else parse_time(report.ended)
        return cls(
            report=report,
            counts=states.counts(),
            groups=tuple(
                GroupView(number=step, runs=_runs(report, states, step, nodes))
                for step, nodes in enumerate(state.began.groups, 1)
            ),
            rollback=GroupView(
                number=state.step_back, runs=_runs(report, states, state.step_back, back)
            )
            if back
            else None,
            release=report.release,
            options=describe_options(state.began.options),
            seconds=max((ended - began).total_seconds(), 0.0),
            left=_left(report, now),
            waiting=_waiting(report),
        )

    @property
    def previous(self) -> Mapping[str, int]:
        """The releases that it replaces, with the number of nodes that ran each before it."""
        before = self.report.state.previous if self.release else {}
        return {release: nodes for release, nodes in before.items() if release != self.release}

    @property
    def change(self) -> str:
        """The release that it delivers, after the previous ones: `r1, r2 → r3`; may be empty."""
        if not self.previous:
            return self.release
        return f"{shown_names([*self.previous])} → {self.release}"

    def facts(self) -> Iterator[tuple[str, str]]:
        """Yield what an operator wants to know first: names and texts."""
        report, began = self.report, self.report.state.began
        yield "Release", self.change or "none: each node runs what it has"
        yield "By", began.caller
        yield "Began", show_moment(parse_time(report.began))
        if report.ended is not None:
            yield "Over", show_moment(parse_time(report.ended))
        yield "Elapsed", show_duration(self.seconds)
        if self.left:
            yield "Left", self.left
        if self.waiting is not None:
            until = self.waiting.until
            end = "" if until is None else f", until {show_moment(until)}"
            yield "Waits for", f"{self.waiting.what}{end}"
        if self.options:
            yield "Options", "; ".join(self.options)
        if began.approval is not None:
            yield "Approved", f"{began.approval.digest}, of rollout {began.approval.rollout}"
        if began.parent is not None:
            yield "Repeats", f"the failed nodes of {began.parent}"
        if report.state.epoch > 1:
            times = report.state.epoch - 1
            yield "Resumed", "once" if times == 1 else f"{times} times"


def show_moment(moment: datetime) -> str:
    """Return a time for people, UTC to the second."""
    return f"{moment:%Y-%m-%d %H:%M:%S UTC}"


def time_left(state: RolloutState, on: Mapping[NodeRun, float] = MappingProxyType({})) -> str:
    """Return the estimated time until the end, in words; empty if nothing further starts.

    Args:
        state: The state of the rollout.
        on: Node run → for how many seconds it has been running, as far as known.
    """
    if state.over is not None or state.stopped is not None or state.paused is not None:
        return ""
    usual = state.usual
    if any(seconds > usual.get(turn.node, seconds) + LONG for turn, seconds in on.items()):
        return "longer than usual"
    left = seconds_left(state)
    return "time left unknown" if left is None else f"about {show_duration(left)} left"


def _runs(
    report: RolloutReport, states: ProgressStates, step: int, nodes: Sequence[NodeName]
) -> tuple[NodeRunView, ...]:
    views = []
    for turn in (NodeRun(step, node) for node in nodes):
        end, state = report.state.ends.get(turn), states.of_run(turn)
        views.append(
            NodeRunView(
                node_run=turn,
                state=state,
                detail=_detail(report.state, turn, state),
                reason=_reason(report, turn, state),
                run="" if end is None else end.run or "",
                started=_moment(report.started_at.get(turn)),
                ended=_moment(report.ended_at.get(turn)),
            )
        )
    return tuple(views)


def _detail(state: RolloutState, turn: NodeRun, shown: ProgressState) -> str:
    end = state.ends.get(turn)
    if turn in state.differing and shown is ProgressState.WAITING:
        return "for an approval"
    if end is None or shown is ProgressState.ROLLED_BACK:
        return ""
    if shown in OPEN:
        return "to roll back" if state.settled(turn) else "being checked"
    if turn.step == state.step_back:
        failed = shown is ProgressState.FAILED
        return str(NodeResult.ROLLBACK_FAILED if failed else "had not taken the release")
    word = word_of(end)
    return "" if word in (shown, NodeResult.SUCCEEDED) else word


def word_of(end: NodeRunEnded) -> str:
    """Return the result of a node run in a word: a failed check outweighs a good outcome."""
    agrees = succeeded(end.outcome) == (end.result is NodeResult.SUCCEEDED)
    return end.outcome if end.outcome and agrees else str(end.result)


def _reason(report: RolloutReport, turn: NodeRun, shown: ProgressState) -> str:
    end = report.state.ends.get(turn)
    if end is not None and end.reason:
        return end.reason
    if shown in (ProgressState.SKIPPED, ProgressState.FAILED):
        return report.reason(turn.node)
    return ""


def _left(report: RolloutReport, now: datetime) -> str:
    if report.word in (INTERRUPTED, ELSEWHERE) or not report.state.durations:
        return ""
    started = report.started_at
    on = {
        turn: (now - parse_time(started[turn])).total_seconds()
        for turn in report.state.running
        if turn in started
    }
    return time_left(report.state, on)


def _waiting(report: RolloutReport) -> WaitingFor | None:
    state = report.state
    if state.over is not None or state.overtaken is not None:
        return None
    if report.word == INTERRUPTED:
        return WaitingFor(what="an operator, to resume it: no process controls it")
    if state.waits:
        return _awaited_decision(state)
    options = state.began.options
    if running := state.running:
        begun = [parse_time(report.started_at[turn]) for turn in running]
        until = min(begun, default=None)
        return WaitingFor(
            what=shown_names(sorted(turn.node for turn in running)),
            until=None if until is None else until + timedelta(seconds=options.timeout),
        )
    if unchecked := state.unchecked:
        return WaitingFor(what=f"the checks of {shown_names([turn.node for turn in unchecked])}")
    if options.delivery is not None and not (state.serials or state.stopped):
        return WaitingFor(what=f"the nodes to stage {options.delivery.release}")
    return None


def pause_end(state: RolloutState) -> datetime | None:
    """Return when the current pause ends without a decision, UTC; `None` if unknown."""
    since = None if state.paused is None else state.paused.since
    length = timedelta(seconds=state.began.options.pause_at_most)
    return None if since is None else since + length


def _awaited_decision(state: RolloutState) -> WaitingFor:
    """Return the decision that ends the current pause."""
    paused, options, until = state.paused, state.began.options, pause_end(state)
    if paused is not None and paused.needs_approval:
        nodes = shown_names(sorted(turn.node for turn in state.differing))
        return WaitingFor(what=f"an operator, to approve what {nodes} would change", until=until)
    choices = "continue, roll back" if options.delivery is not None else "continue"
    return WaitingFor(what=f"an operator, to {choices} or stop it", until=until)


def _moment(text: str | None) -> datetime | None:
    return None if text is None else parse_time(text)
