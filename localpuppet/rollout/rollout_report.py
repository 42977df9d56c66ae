"""The report of a rollout: its state, its node runs with their times, and the decisions.

The Prometheus textfile about the last rollout of this machine is beside `metrics.prom`, which node
runs replace. The time of the last success is kept: it is read from the previous file before that is
replaced.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from localpuppet.base.formats.converter import to_record
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.prometheus import parse_samples, show_samples
from localpuppet.base.formats.times import parse_time, show_time
from localpuppet.base.machine.files import write_durably
from localpuppet.base.value import Value
from localpuppet.node.puppet.changes import PropertyChange
from localpuppet.rollout import events
from localpuppet.rollout.deciding import approval_of
from localpuppet.rollout.state import (
    ProgressState,
    ProgressStates,
    RolloutState,
    count_states,
    of_group,
    word_of_ending,
)

RUNNING = "running"
PAUSED = "paused"
INTERRUPTED = "interrupted"
OVERTAKEN = "taken over"
ELSEWHERE = "elsewhere"
LOST = "the rollout ended before the result was known"


def show_counts(counts: Mapping[str, int]) -> str:
    """Return the counts of `RolloutReport.counts` as text."""
    return ", ".join(f"{number} {word}" for word, number in counts.items())


class RolloutReport(Value):
    state: RolloutState
    # The state in one word: `RUNNING`, `PAUSED`, `INTERRUPTED` (no process controls it),
    # `OVERTAKEN` (another controller has it), `ELSEWHERE` (it continued on another machine, and may
    # still be running), or why it is over.
    word: str
    began: str
    ended: str | None
    started_at: dict[events.NodeRun, str]
    ended_at: dict[events.NodeRun, str]
    checked_at: dict[events.NodeRun, str]
    # Decisions about the whole rollout: times and texts with their authors.
    decisions: tuple[tuple[str, str], ...]
    # Those of them that operators sent: time, command, operator and machine.
    commands: tuple[tuple[str, str, str], ...] = ()

    @classmethod
    def of(cls, timed: Sequence[events.TimedEvent], *, taken: bool) -> "RolloutReport":
        """Return the report of a rollout from its events, the oldest first.

        `taken` is whether a process controls it. See `RolloutState.of` for events that form no
        rollout.
        """
        state = RolloutState.of(event for _, event in timed)
        started_at: dict[events.NodeRun, str] = {}
        ended_at: dict[events.NodeRun, str] = {}
        checked_at: dict[events.NodeRun, str] = {}
        decisions: list[tuple[str, str]] = []
        ended: str | None = None
        for at, event in timed:
            if isinstance(event, events.NodeRunsStarted):
                started_at.update(dict.fromkeys(event.node_runs, at))
            elif isinstance(event, events.NodeRunEnded):
                ended_at.setdefault(event.node_run, at)
            elif isinstance(event, events.ChecksEnded):
                checked_at[event.node_run] = at
            elif isinstance(event, events.RolloutEnded):
                ended = ended or at
            elif isinstance(event, events.RolloutResumed):
                ended = None
            if decision := _decision(event):
                decisions.append((at, decision))
        word = INTERRUPTED if state.overtaken is None else OVERTAKEN
        if state.over is not None:
            word = word_of_ending(state.over.ending, ProgressStates(state).counts())
        elif taken:
            word = PAUSED if state.waits else RUNNING
        return cls(
            state=state,
            word=word,
            began=timed[0][0],
            ended=None if state.over is None else ended,
            started_at=started_at,
            ended_at=ended_at,
            checked_at=checked_at,
            decisions=tuple(decisions),
            commands=tuple((at, *sent) for at, event in timed if (sent := _command(event))[1]),
        )

    @property
    def succeeded(self) -> bool:
        """Whether the rollout is over and every selected node succeeded."""
        results = self.state.results().values()
        return self.state.over is not None and all(
            result is events.NodeResult.SUCCEEDED for result in results
        )

    def counts(self) -> dict[str, int]:
        """Return state → number of nodes; see `ProgressState`."""
        return ProgressStates(self.state).counts()

    def seconds(self, turn: events.NodeRun) -> float | None:
        """Return the seconds from the request of a node run to its result; `None` if not over."""
        begun, ended = self.started_at.get(turn), self.ended_at.get(turn)
        if begun is None or ended is None:
            return None
        return (parse_time(ended) - parse_time(begun)).total_seconds()

    def reason(self, node: NodeName) -> str:
        """Return why a node did not succeed, one line; empty if it did or the reason is unknown."""
        back = self.state.ends.get(events.NodeRun(self.state.step_back, node))
        if back is not None and back.reason:
            return back.reason
        end = self.state.failed.get(node)
        lost = LOST if node in self.state.lost else ""
        return self.state.skipped.get(node) or (end.reason if end else lost)

    def held_until(self) -> dict[NodeName, datetime]:
        """Return the nodes that may still be on hold after the end, with the latest expiry, UTC."""
        over, longest = self.state.over, self.state.began.options.investigate or 0.0
        if over is None or self.ended is None:
            return {}
        begun = parse_time(self.ended)
        return {
            node: begun
            + timedelta(seconds=longest if node in over.held_for_investigation else events.HOLD)
            for node in sorted({*over.still_held, *over.held_for_investigation})
        }

    @property
    def release(self) -> str:
        """The release that the rollout delivers; empty if the nodes run what they have."""
        delivery = self.state.began.options.delivery
        return "" if delivery is None else str(delivery.release)

    @property
    def why(self) -> str:
        """Why the rollout is over, stopped or paused, one line; may be empty."""
        state = self.state
        if state.overtaken is not None:
            return state.overtaken.who
        return next(
            (end.reason for end in (state.over, state.stopped, state.paused) if end is not None), ""
        )

    def summary(self) -> dict[str, Any]:
        """Return the JSON form of the rollout in a list of rollouts."""
        began = self.state.began
        return {
            "id": began.id,
            "title": began.title,
            "release": self.release,
            "caller": began.caller,
            "parent": began.parent,
            "state": self.word,
            "reason": self.why,
            "started_at": self.began,
            "finished_at": self.ended,
            "epoch": self.state.epoch,
            "noop": began.options.noop,
            "succeeded": self.succeeded,
            "counts": self.counts(),
            "waits_for": [self._waiting(turn) for turn in sorted(self.state.differing)],
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the complete JSON form."""
        over, states = self.state.over, ProgressStates(self.state)
        return {
            "schema": 1,
            **self.summary(),
            "options": to_record(self.state.began.options),
            "nodes": [
                {
                    "node": node,
                    "state": str(states.nodes[node]),
                    "result": result and str(result),
                    "reason": self.reason(node),
                }
                for node, result in self.state.results().items()
            ],
            "groups": [
                self._group(step, states) for step in range(1, len(self.state.began.groups) + 1)
            ],
            "rollback_runs": [
                self._run(events.NodeRun(self.state.step_back, node), states)
                for node in (self.state.took if self.state.goes_back else ())
            ],
            "decisions": [{"at": at, "what": what} for at, what in self.decisions],
            **self._changes(),
            "still_held": dict(over.still_held) if over else {},
            "held_until": {node: show_time(end) for node, end in self.held_until().items()},
            "held_for_investigation": list(over.held_for_investigation) if over else [],
        }

    def _changes(self) -> dict[str, Any]:
        """Return the JSON form of reported changes and of differences from the approval."""
        approval, approvable = self.state.began.approval, approval_of(self.state)
        return {
            "digest": None if approvable is None else approvable.digest,
            "changes": [
                {
                    "node": node,
                    "release": predicted.release,
                    "total": predicted.total,
                    "changes": [_named(change) for change in predicted.changes],
                }
                for node, predicted in sorted(self.state.predicted_changes.items())
            ],
            "approval": None
            if approval is None
            else {"rollout": approval.rollout, "digest": approval.digest},
            "differences": [self._difference(turn) for turn in sorted(self.state.seen)],
        }

    def _waiting(self, turn: events.NodeRun) -> dict[str, Any]:
        difference = self.state.seen[turn]
        return {
            "node": turn.node,
            "group": turn.step,
            "reason": difference.reason,
            "difference": difference.digest,
        }

    def _difference(self, turn: events.NodeRun) -> dict[str, Any]:
        difference, approved = self.state.seen[turn], self.state.approved.get(turn)
        return {
            **self._waiting(turn),
            "release": difference.release,
            "changes": [_named(change) for change in difference.others],
            "approved_by": None if approved is None else approved.approved_by,
        }

    def _group(self, step: int, states: ProgressStates) -> dict[str, Any]:
        runs = [
            self._run(events.NodeRun(step, node), states)
            for node in self.state.began.groups[step - 1]
        ]
        run_states = [ProgressState(run["state"]) for run in runs]
        return {
            "group": step,
            "state": str(of_group(run_states)),
            "counts": count_states(run_states),
            "runs": runs,
        }

    def _run(self, turn: events.NodeRun, states: ProgressStates) -> dict[str, Any]:
        end = self.state.ends.get(turn)
        return {
            "node": turn.node,
            "state": str(states.of_run(turn)),
            "started_at": self.started_at.get(turn),
            "finished_at": self.ended_at.get(turn),
            "seconds": self.seconds(turn),
            "result": None if end is None else str(end.result),
            "outcome": None if end is None else end.outcome,
            "run": None if end is None else end.run,
            "reason": "" if end is None else end.reason,
            "checks": len(self.state.checks(turn)),
            "checked_at": self.checked_at.get(turn),
        }


def _named(change: PropertyChange) -> dict[str, str]:
    """Return the JSON form of a change without its mark, which has a meaning only on its node."""
    return {"type": change.type, "title": change.title, "property": change.property}


def _decision(event: events.Event) -> str:
    """Return an event's decision about the whole rollout, one line; empty if it has none."""
    if isinstance(event, events.RolloutPaused):
        return event.reason if event.requested_by else f"paused: {event.reason}"
    if isinstance(event, events.RolloutContinued):
        return f"continued by {event.who}"
    if isinstance(event, events.ChangesPredicted) and event.difference:
        difference = event.difference
        return f"{event.node_run.node} {difference.reason} (difference {difference.digest})"
    if isinstance(event, events.ChangesApproved):
        return (
            f"{event.approved_by} approved what {event.node_run.node} changes ({event.difference})"
        )
    if isinstance(event, events.RolloutTakenOver):
        return f"{OVERTAKEN} {event.who}"
    if isinstance(event, events.RolloutStopped):
        return f"no further nodes start: {event.reason}"
    if isinstance(event, events.RolloutResumed):
        return f"resumed by {event.who}" if event.who else "resumed"
    return ""


def _command(event: events.Event) -> tuple[str, str]:
    """Return the command that led to an event, and its operator; the latter may be empty."""
    if isinstance(event, events.RolloutPaused):
        return "pause", event.requested_by
    if isinstance(event, events.RolloutContinued):
        return "continue", event.who
    if isinstance(event, events.ChangesApproved):
        return "approve", event.approved_by
    if isinstance(event, events.RolloutStopped):
        goes_back = event.ending is events.RolloutEnding.ROLLED_BACK
        return "rollback" if goes_back else "stop", event.requested_by
    return "resume", event.who if isinstance(event, events.RolloutResumed) else ""


_SUCCESS = "localpuppet_last_rollout_success_timestamp_seconds"
_HELP = {
    "localpuppet_last_rollout_info": "1, with the id of the last rollout of this machine.",
    "localpuppet_last_rollout_running": "Whether a process of this machine controls it.",
    "localpuppet_last_rollout_paused": "Whether it is paused until an operator decides.",
    "localpuppet_last_rollout_noop": "Whether it was to change nothing.",
    "localpuppet_last_rollout_start_timestamp_seconds": "When it began.",
    "localpuppet_last_rollout_end_timestamp_seconds": "When it was over.",
    "localpuppet_last_rollout_duration_seconds": "How long it has been running, or ran.",
    "localpuppet_last_rollout_outcome": "1 for why it is over; all 0 before that.",
    "localpuppet_last_rollout_success": "Whether it is over and every node succeeded.",
    "localpuppet_last_rollout_nodes": "Nodes by state.",
    "localpuppet_last_rollout_resumptions": "How often it was resumed.",
    _SUCCESS: "When a rollout that was to change something last succeeded.",
}


def update_metrics(metrics: Path, report: RolloutReport, *, now: datetime) -> None:
    """Replace `metrics-rollouts.prom` beside the textfile of node runs; both are world-readable."""
    path = metrics.with_stem(f"{metrics.stem}-rollouts")
    samples = dict(_of(report, now))
    success = _success_before(path)
    if report.succeeded and report.ended is not None and not report.state.began.options.noop:
        success = f"{parse_time(report.ended).timestamp():.3f}"
    if success is not None:
        samples[_SUCCESS] = success
    write_durably(path, show_samples(samples, _HELP).encode(), mode=0o644)


def _success_before(path: Path) -> str | None:
    try:
        return parse_samples(path.read_text("utf-8")).get(_SUCCESS)
    except (OSError, UnicodeDecodeError):
        return None


def _of(report: RolloutReport, now: datetime) -> Iterator[tuple[str, str]]:
    last = "localpuppet_last_rollout_"
    over = report.state.over
    began = parse_time(report.began)
    ended = None if report.ended is None else parse_time(report.ended)
    yield f'{last}info{{id="{report.state.began.id}"}}', "1"
    yield f"{last}running", str(int(report.word in (RUNNING, PAUSED)))
    yield f"{last}paused", str(int(report.state.waits))
    yield f"{last}noop", str(int(report.state.began.options.noop))
    yield f"{last}start_timestamp_seconds", f"{began.timestamp():.3f}"
    if ended is not None:
        yield f"{last}end_timestamp_seconds", f"{ended.timestamp():.3f}"
    yield f"{last}duration_seconds", f"{((ended or now) - began).total_seconds():.3f}"
    for ending in events.RolloutEnding:
        value = str(int(over is not None and over.ending is ending))
        yield f'{last}outcome{{outcome="{ending}"}}', value
    yield f"{last}success", str(int(report.succeeded))
    counts = report.counts()
    for state in ProgressState:
        yield f'{last}nodes{{state="{state}"}}', str(counts.get(state, 0))
    yield f"{last}resumptions", str(report.state.epoch - 1)
