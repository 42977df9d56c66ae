"""Print the progress and the report of a rollout for people, and what nodes would change."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any

import click

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import RunId
from localpuppet.base.formats.times import show_duration, show_time
from localpuppet.node.cli import render, render_run
from localpuppet.node.puppet.changes import PredictedChanges, PropertyChange
from localpuppet.rollout import events, rollout_report, rollout_view
from localpuppet.rollout.deciding import approval_of, not_approvable, time_left, too_much
from localpuppet.rollout.rollout_options import OnFailure, UnapprovedChange
from localpuppet.rollout.state import RolloutState

SHOWN_LINES = 5  # changes of a node while a rollout is running


def foreseen(predicted: PredictedChanges) -> str:
    """Return how much a node would change."""
    return f"would change {render.counted(predicted.total, 'property')}"


def change_lines(
    property_changes: Sequence[PropertyChange], *, most: int = SHOWN_LINES
) -> Iterator[str]:
    """Yield a line for each change up to `most`, and one for the number of others."""
    for change in property_changes[:most]:
        yield render.hanging("    ", render.user_text(str(change)))
    if len(property_changes) > most:
        yield f"    and {len(property_changes) - most} more: 'localpuppet rollout report' has all"


def _event_lines(event: events.Event) -> Iterator[str]:
    """Yield the lines about an event's changes, while a rollout is running."""
    if isinstance(event, events.NodeRunEnded) and event.predicted_changes is not None:
        yield from change_lines(event.predicted_changes.changes)
    elif isinstance(event, events.ChangesPredicted) and event.difference:
        yield from difference_lines(event.node_run, event.difference)
    elif isinstance(event, events.ChangesApproved):
        yield f"{render.user_text(event.approved_by)} approved what {event.node_run.node} changes"


def difference_lines(
    turn: events.NodeRun, unapproved: UnapprovedChange, *, most: int = SHOWN_LINES
) -> Iterator[str]:
    """Yield the lines about a node's changes that were not approved."""
    why = render.user_text(unapproved.reason)
    yield render.hanging("", f"{turn.node}  {why} (difference {unapproved.digest})")
    yield from change_lines(unapproved.others, most=most)


def _approval_command(state: RolloutState) -> str:
    """Return the commands that decide about a pending approval."""
    node = min(state.differing, default=events.NodeRun(0, state.nodes[0])).node
    return f"'localpuppet rollout approve {state.began.id} {node}' or 'stop' decides"


def _digest_lines(state: RolloutState) -> Iterator[str]:
    """Yield the lines about the digest of a finished rollout with noop."""
    if not state.began.options.noop or state.over is None:
        return
    approval = approval_of(state)
    if approval is None:
        yield render.hanging("", f"nothing to approve: {not_approvable(state)}")
        return
    total = sum(predicted.total for predicted in approval.nodes.values())
    yield f"{render.counted(total, 'property')} would change; the digest of that:"
    yield f"  {approval.digest}"
    yield "'localpuppet rollout run --approve DIGEST' with the same selection"
    yield "runs it if nothing else would change"


ASKING = "asking whether all are ready"
SHOWN_NODES = 10  # node names in a line
SHOWN_FAILURES = 10
LONG = 10  # seconds after which the duration of a node run is shown
_COLORS = {"good": "green", "bad": "red", "warn": "yellow", "active": "cyan", "quiet": None}
_RESULTS = {"succeeded": "done", "changed": "done", "unchanged": "done", "unresponsive": "failed"}


def coloured(word: str) -> str:
    """Return a result, outcome or state in the colour that its tone has in the dashboard."""
    return click.style(word, fg=_COLORS[rollout_view.tone_of(_RESULTS.get(word, word))])


class RolloutProgress:
    """Shows a rollout while it is running: a line for each result, and a progress line."""

    def __init__(self, observer: render.QuietObserver, clock: Callable[[], float]) -> None:
        self._observer = observer
        self._clock = clock
        self._state: RolloutState | None = None
        self._started: dict[events.NodeRun, float] = {}

    def replay(self, events: Sequence[events.Event]) -> None:
        """Take earlier events without showing them."""
        self._state = RolloutState.of(events)

    def take(self, event: events.Event) -> None:
        if isinstance(event, events.RolloutBegan):
            self._state = self._state or RolloutState(event)
            self._line(head(self._state))
        if self._state is None:
            return
        if not isinstance(event, events.RolloutBegan):
            self._state.take(event)
        if isinstance(event, events.NodeRunsStarted):
            self._started.update(dict.fromkeys(event.node_runs, self._clock()))
        pause = self._state.paused if isinstance(event, events.RolloutResumed) else None
        for shown in (event, pause):  # a rollout that was killed in a pause waits in it again
            for line in self._lines(shown, self._state):
                self._line(line)
        for line in _event_lines(event):
            self._observer.line(line)
        self._observer.title(partial(self._how_far, self._state))

    def _how_far(self, state: RolloutState) -> str:
        now = self._clock()
        far = how_far(state, on={turn: now - begun for turn, begun in self._started.items()})
        return f"paused: {far}" if state.waits else far

    def _lines(self, event: events.Event | None, state: RolloutState) -> Iterator[str]:
        """Yield the lines that describe an event."""
        if isinstance(event, events.RolloutResumed):
            who = render.user_text(event.who)
            left = sum(result is None for result in state.results().values())
            nodes = f": {left} of {render.counted(len(state.nodes), 'node')} left"
            yield f"resumed by {who}{nodes}" if who else f"resumed{nodes}"
        elif isinstance(event, events.StagingEnded) and state.began.options.delivery is not None:
            yield f"{state.began.options.delivery.release} is on all nodes"
        elif isinstance(event, events.NodeRunEnded):
            yield self._ended(event, state)
        elif isinstance(event, events.ChecksEnded) and event.problem:
            problem = render.user_text(event.problem)
            yield f"{event.node_run.node}  {coloured(str(events.NodeResult.FAILED))}: {problem}"
        elif isinstance(event, events.NodesSkipped):
            for node, why in event.reasons.items():
                yield f"{node}  {coloured('skipped')}: {render.user_text(why)}"
        elif isinstance(event, events.RolloutPaused):
            why = render.user_text(event.reason.removeprefix("paused "))
            yield f"{coloured('paused')}: {why}"
            yield _who_decides(state, event)
        elif isinstance(event, events.RolloutContinued):
            yield f"{render.user_text(event.who)} continued it"
        elif isinstance(event, events.RolloutStopped):
            yield f"no further nodes start: {render.user_text(event.reason)}"

    def _line(self, text: str) -> None:
        self._observer.line(render.hanging("", text))

    def _ended(self, event: events.NodeRunEnded, state: RolloutState) -> str:
        begun = self._started.get(event.node_run)
        seconds = "" if begun is None else f" ({show_duration(self._clock() - begun)})"
        word = event.outcome or str(event.result)
        if event.node_run.step == state.step_back:
            word = way_back(event)
        if event.result is events.NodeResult.SUCCEEDED:
            changes = event.predicted_changes
            more = "" if changes is None else f", {foreseen(changes)}"
            return f"{event.node_run.node}  {coloured(word)}{seconds}{more}"
        reason = f": {render.user_text(event.reason)}" if event.reason else ""
        return f"{event.node_run.node}  {coloured(word)}{seconds}{reason}"


def way_back(end: events.NodeRunEnded) -> str:
    """Return the result of a node's rollback run, in words."""
    if end.result is events.NodeResult.NOT_REACHED:
        return "had not taken it"
    return str(
        events.NodeResult.ROLLED_BACK
        if end.result is events.NodeResult.SUCCEEDED
        else events.NodeResult.ROLLBACK_FAILED
    )


def head(state: RolloutState) -> str:
    """Return a one-sentence description of a rollout."""
    began = state.began
    runs = sum(len(group) for group in began.groups)
    noop = ", changing nothing" if began.options.noop else ""
    noop = noop or (", changing what was approved" if began.approval is not None else "")
    return (
        f"rollout {began.id}: {render.user_text(began.title)}, "
        f"{render.counted(len(state.nodes), 'node')}, {render.counted(runs, 'run')} in "
        f"{render.counted(len(began.groups), 'group')}{noop}"
    )


def how_far(
    state: RolloutState,
    *,
    goes_on: bool = True,
    on: Mapping[events.NodeRun, float] = MappingProxyType({}),
) -> str:
    """Return the text of the progress line; the parts that may be truncated come last.

    Without a process that controls the rollout (`goes_on`), there is no estimate. `on` has the
    seconds for which node runs have been running.
    """
    total = sum(len(group) for group in state.began.groups)
    running = [turn for turn in state.running if turn not in state.unanswered]
    if goes_on and not (state.started or state.stopped or state.over or state.durations):
        return ASKING
    if state.began.options.delivery is not None and not (state.serials or state.stopped):
        return f"bringing {state.began.options.delivery.release} to all nodes"
    ended = [turn for turn in state.ends if turn.step != state.step_back]
    step = max((turn.step for turn in (*running, *state.ends)), default=1)
    parts = [f"{len(ended)} of {total} runs ended"]
    if step == state.step_back:
        parts.insert(0, f"{len(state.ends) - len(ended)} of {len(state.took)} rolled back")
    elif len(state.began.groups) > 1:
        parts.insert(0, f"group {step} of {len(state.began.groups)}")
    if state.failed:
        parts.append(f"{len(state.failed)} failed")
    on_now = {turn: on.get(turn, 0.0) for turn in running}
    if goes_on and (left := time_left(state, on_now)):
        parts.append(left)
    if state.unchecked:
        parts.append(f"{len(state.unchecked)} to be checked")
    if running:
        parts.append(_running(running, on))
    return ", ".join(parts)


def _running(running: Sequence[events.NodeRun], on: Mapping[events.NodeRun, float]) -> str:
    """Return which nodes are running, the longest first, and for how long if that is long."""
    longest = sorted(running, key=lambda turn: -on.get(turn, 0.0))
    seconds = int(on.get(longest[0], 0.0))
    length = ""
    if seconds >= LONG:
        length = f"{' for' if len(running) == 1 else ', one for'} {show_duration(seconds)}"
    names = ", ".join(turn.node for turn in longest[:3])
    return f"{len(running)} running{length} ({names}{', …' if len(running) > 3 else ''})"


def outcome(report: rollout_report.RolloutReport) -> str:
    """Return the result or the state of a rollout, in a few lines."""
    over, why = report.state.over, report.why.removeprefix(f"{report.word} ")
    counts, rollout = rollout_report.show_counts(report.counts()), report.state.began.id
    texts = [f"{coloured(report.word)}{': ' if why else ''}{render.user_text(why)} ({counts})"]
    if over and over.still_held:
        until = report.held_until()
        for node, reason in sorted(over.still_held.items()):
            end = render_run.moment(show_time(until[node]))
            texts.append(f"{node} may be held until {end}: {render.user_text(reason)}")
        texts.append(f"the hold expires then; 'localpuppet rollout stop {rollout}' asks again")
    if over and (held := over.held_for_investigation):
        length = show_duration(report.state.began.options.investigate or 0)
        nodes = ", ".join(held[:SHOWN_NODES]) + (", …" if len(held) > SHOWN_NODES else "")
        texts.append(f"kept on hold for {length}, because they failed: {nodes}")
        texts.append(f"'localpuppet rollout stop {rollout}' releases them")
    lines = [render.hanging("", text) for text in texts]
    if report.word == rollout_report.PAUSED:
        for turn, difference in sorted(report.state.differing.items()):
            lines += difference_lines(turn, difference)
        if report.state.differing:
            lines.append(_approval_command(report.state))
    lines += _digest_lines(report.state)
    texts = [_where_to_look(report.state)]
    if report.word == rollout_report.PAUSED and report.state.paused is not None:
        texts.append(_who_decides(report.state, report.state.paused))
    texts.append(_what_goes_on(report))
    lines += [render.hanging("", text) for text in texts if text]
    return "\n".join(lines)


def _what_goes_on(report: rollout_report.RolloutReport) -> str:
    """Return the command that completes the rollout, one line; empty if no command can.

    Resuming is no option if the failures would end the rollout at once.
    """
    state, options = report.state, report.state.began.options
    if report.succeeded or report.word in (
        rollout_report.RUNNING,
        rollout_report.PAUSED,
        rollout_report.OVERTAKEN,
    ):
        return ""
    if report.word == events.RolloutEnding.NOT_READY and not options.skip_unready:
        return "repeat it when these nodes are ready, or leave them out with --skip-unready"
    if state.resumable and (options.on_failure is OnFailure.PAUSE or not too_much(state)):
        return f"'localpuppet rollout resume {state.began.id}' continues it"
    if not state.resumable and (state.goes_back or not state.failed):
        return ""  # the release failed: repeating it would fail again
    again = f"'localpuppet rollout run --failed-in {state.began.id}', with the same --site if any,"
    return f"{again} repeats the nodes that did not succeed"


def _where_to_look(state: RolloutState) -> str:
    """Return the command that shows details of the first failed node; may be empty."""
    end = next((end for end in state.failed.values() if end.run), None)
    if end is None:
        return ""
    try:
        run = RunId.parse(end.run or "")
    except InvalidInputError:  # no Puppet run, or a malformed report
        return ""
    return f"'localpuppet report {run} --node {end.node_run.node}' shows details"


def _who_decides(state: RolloutState, paused: events.RolloutPaused) -> str:
    """Return the commands that end a pause, and when it ends without one."""
    options, until = state.began.options, rollout_view.pause_end(state)
    end = f"within {show_duration(options.pause_at_most)}"
    if until is not None:
        end = f"until {rollout_view.show_moment(until)}"
    if paused.needs_approval:
        return f"{_approval_command(state)}, {end}"
    others = ", 'rollback' or 'stop'" if options.delivery is not None else " or 'stop'"
    return f"'localpuppet rollout resume {state.began.id}'{others} decides, {end}"


def _header(view: rollout_view.RolloutView) -> str:
    return render.pairs([(name, render.user_text(text)) for name, text in view.facts()])


def status(report: rollout_report.RolloutReport, now: datetime, *, from_bus: bool = False) -> str:
    """Return the state of a rollout: how far it is, its facts, its failures and its outcome."""
    lines = [render.hanging("", head(report.state))]
    if report.state.over is None or from_bus:
        goes_on = report.word not in (rollout_report.INTERRUPTED, rollout_report.OVERTAKEN)
        lines.append(render.hanging("", how_far(report.state, goes_on=goes_on)))
    view = rollout_view.RolloutView.of(report, now)
    return "\n".join([*lines, _header(view), *_failures(report.state), outcome(report)])


def _failures(state: RolloutState) -> list[str]:
    """Return the failed nodes with the reasons, a line each, and how many more there are."""
    ends = sorted(state.failed.items())
    lines = [
        f"{node}  {coloured(end.outcome or str(end.result))}: {render.user_text(end.reason)}"
        for node, end in ends[:SHOWN_FAILURES]
    ]
    if len(ends) > SHOWN_FAILURES:
        more = render.counted(len(ends) - SHOWN_FAILURES, "failed node")
        lines.append(f"{more} more: 'localpuppet rollout report {state.began.id}'")
    return [render.hanging("", line) for line in lines]


def full(view: rollout_view.RolloutView) -> str:
    """Return the complete report of a rollout."""
    report, state = view.report, view.report.state
    lines = [render.hanging("", head(state)), outcome(report), _header(view)]
    lines += [
        render.hanging("", f"{render_run.moment(at)}  {render.user_text(what)}")
        for at, what in report.decisions
    ]
    for node, predicted in sorted(state.predicted_changes.items()):
        lines += ["", f"{node}  {foreseen(predicted)}, running {predicted.release}"]
        lines += change_lines(predicted.changes, most=len(predicted.changes))
    for turn, changes in sorted(state.seen.items()):
        lines += ["", *difference_lines(turn, changes, most=len(changes.others))]
    for group in view.all_groups:
        lines += ["", f"{click.style(group.title, bold=True)}  {coloured(group.state)}"]
        lines += map(_run, group.runs)
    return "\n".join(lines)


def _run(run: rollout_view.NodeRunView) -> str:
    detail = f", {render.user_text(run.detail)}" if run.detail else ""
    took = "" if run.seconds is None else f" ({show_duration(run.seconds)})"
    reason = f": {render.user_text(run.reason)}" if run.reason else ""
    puppet = f"  [run {render.user_text(run.run)}]" if run.run else ""
    text = f"{run.node}  {coloured(run.state)}{detail}{took}{reason}{puppet}"
    return render.hanging("  ", text)


def rollout_rows(rollouts: Iterable[Mapping[str, Any]]) -> str:
    """Return the table of a list of rollouts, from their JSON form."""
    rows = [
        (
            rollout["id"],
            coloured(rollout["state"]) + (" (noop)" if rollout.get("noop") else ""),
            render.user_text(rollout.get("release") or "-"),
            render.user_text(rollout.get("caller") or "-"),
            render_run.moment(rollout.get("started_at")) or "-",
            rollout_report.show_counts(rollout.get("counts", {})),
        )
        for rollout in rollouts
    ]
    head = ("ROLLOUT", "STATE", "RELEASE", "BY", "BEGAN", "NODES")
    return render.table(head, rows, spare=("BEGAN", "BY"))
