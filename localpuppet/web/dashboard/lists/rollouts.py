"""Rollouts as rows of a list, and one rollout group by group."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.times import parse_time
from localpuppet.fleet.triggers.cause import succeeded
from localpuppet.rollout.rollout_report import PAUSED, RUNNING, RolloutReport
from localpuppet.rollout.rollout_view import GroupView, NodeRunView, RolloutView, TimeLine
from localpuppet.rollout.state import ProgressState
from localpuppet.web.dashboard.list_query import ListQuery
from localpuppet.web.dashboard.remote_rollouts import NodeRolloutReport, ReportedRollout

DAMAGED = "damaged"
# The state of a rollout that only nodes report: whether it holds one of them.
HOLDING, RELEASED = "holding", "released"
NODES = "reported by nodes"
# Nodes that a page names of all groups together, and of one at least.
MOST_NODES, FEWEST = 200, 8
# Rollouts on the overview: nodes name the rollouts that hold them, and a node may lie.
MOST_ACTIVE = 20
_ACTIVE = (RUNNING, PAUSED)
# The order of nodes in a group: what needs attention first.
_ORDER = (ProgressState.FAILED, ProgressState.RUNNING, ProgressState.WAITING)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRow:
    """A rollout in a list.

    Attributes:
        id: Its id.
        state: Its state: a word of `RolloutReport`, or `DAMAGED`.
        title: Its title.
        caller: The caller id of its operator.
        reason: The reason of the state, one line, or empty.
        started_at: Its start, seconds since 1970; `None` if unknown.
        finished_at: Its end, or `None`.
        noop: Whether it changes nothing.
        counts: Counts of nodes by state.
        release: The release that it delivers; empty if it delivers none, or it is unknown.
        epoch: How often it was started or resumed; 0 if unknown.
        source: `NODES` if only nodes report it; else empty.
        reported: For such a rollout, the times of the first and the last new report.
    """

    id: str
    state: str
    title: str = ""
    caller: str = ""
    reason: str = ""
    started_at: float | None = None
    finished_at: float | None = None
    noop: bool = False
    counts: tuple[tuple[str, int], ...] = ()
    epoch: int = 0
    release: str = ""
    source: str = ""
    reported: tuple[float, float] | None = None

    @classmethod
    def of(cls, summary: Mapping[str, Any]) -> "RolloutRow":
        """Return the row of a rollout; see `RolloutReport.summary`."""
        return cls(
            id=str(summary["id"]),
            state=str(summary["state"]),
            title=one_line(str(summary["title"])),
            caller=one_line(str(summary["caller"])),
            reason=one_line(str(summary["reason"])),
            release=one_line(str(summary["release"])),
            started_at=_seconds(summary["started_at"]),
            finished_at=_seconds(summary["finished_at"]),
            noop=bool(summary["noop"]),
            counts=tuple(summary["counts"].items()),
            epoch=summary["epoch"],
        )

    @classmethod
    def of_nodes(cls, reported: ReportedRollout) -> "RolloutRow":
        """Return the row of a rollout that only nodes report."""
        counts: Counter[ProgressState] = Counter()
        for outcome, nodes in reported.ends.items():
            counts[_reported_state(outcome)] += nodes
        held = f"it holds {reported.held} {'node' if reported.held == 1 else 'nodes'}"
        return cls(
            id=str(reported.rollout),
            state=HOLDING if reported.held else RELEASED,
            caller=reported.caller,
            reason=held if reported.held else "",
            started_at=reported.rollout.began().timestamp(),
            counts=tuple((str(state), counts[state]) for state in ProgressState if counts[state]),
            source=NODES,
            reported=(reported.first, reported.last),
        )

    @property
    def words(self) -> str:
        """Return what a search finds it by, in lower case."""
        return f"{self.id}\n{self.title}\n{self.caller}\n{self.release}".lower()

    @property
    def nodes(self) -> int:
        """Return the number of its nodes, or of the nodes that report it."""
        return sum(count for _, count in self.counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedRun:
    """A node's run in a rollout, as the node reports it.

    Attributes:
        node: The node.
        state: Its state.
        detail: The outcome of its run, or whether it is held; may be empty.
        run: The id of its run, or empty.
    """

    node: str
    state: ProgressState
    detail: str
    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownGroup:
    """A group on a page.

    Attributes:
        group: The whole group.
        runs: Some of its runs, those that need attention first, each with its bar as SVG.
    """

    group: GroupView
    runs: tuple[tuple[NodeRunView, str], ...]


def active_rollouts(
    rows: Iterable[RolloutRow], holds: Mapping[str, Sequence[str]]
) -> list[RolloutRow]:
    """Return the newest rollouts that run, wait or hold nodes, those without a row last.

    Args:
        rows: All rows.
        holds: Rollout → nodes that it holds.
    """
    active = [row for row in rows if row.state in _ACTIVE or row.id in holds]
    active.sort(key=lambda row: row.id, reverse=True)
    others = sorted(holds.keys() - {row.id for row in active}, reverse=True)
    active += [RolloutRow(id=rollout, state=HOLDING, source=NODES) for rollout in others]
    return active[:MOST_ACTIVE]


def rollouts(rows: Iterable[RolloutRow], asked: ListQuery) -> list[RolloutRow]:
    """Return the requested rollouts, in order.

    Args:
        rows: All rows.
        asked: The request; its `name` is a part of an id, a title, a caller or a release.
    """
    selected = [row for row in rows if asked.name in row.words]
    selected.sort(key=lambda row: row.id)
    selected.sort(key=lambda row: _key(row, asked.sort), reverse=asked.down)
    return selected


def groups_of(view: RolloutView, *, now: datetime) -> list[ShownGroup]:
    """Return the groups of a rollout for a page, the runs of a rollback as the last one.

    Args:
        view: The rollout.
        now: The time, UTC.
    """
    groups = [*view.groups, *([] if view.rollback is None else [view.rollback])]
    most, line = max(FEWEST, MOST_NODES // max(1, len(groups))), TimeLine.of(view, now)
    shown = []
    for group in groups:
        runs = sorted(group.runs, key=lambda run: (_place(run.state), run.node))[:most]
        shown.append(
            ShownGroup(group=group, runs=tuple((run, line.draw_text(run)) for run in runs))
        )
    return shown


def reported_runs(
    reports: Iterable[tuple[str, NodeRolloutReport]], *, now: float
) -> list[ReportedRun]:
    """Return the runs that nodes report of a rollout, in the same order.

    Args:
        reports: The reports, each with the node's name.
        now: Seconds since 1970, UTC.
    """
    return [
        ReportedRun(
            node=node,
            state=_reported_state(report.outcome),
            detail=report.outcome
            or ("held" if report.until is not None and report.until > now else ""),
            run=report.run,
        )
        for node, report in reports
    ]


def decisions_of(report: RolloutReport) -> list[tuple[float, str]]:
    """Return the decisions about a whole rollout, each with its time, seconds since 1970."""
    return [(parse_time(at).timestamp(), what) for at, what in report.decisions]


def _reported_state(outcome: str) -> ProgressState:
    """Return the state of a node that reported an outcome, or none yet."""
    if not outcome:
        return ProgressState.WAITING
    return ProgressState.DONE if succeeded(outcome) else ProgressState.FAILED


def _place(state: ProgressState) -> int:
    return _ORDER.index(state) if state in _ORDER else len(_ORDER)


def _seconds(text: str | None) -> float | None:
    return None if text is None else parse_time(text).timestamp()


def _key(row: RolloutRow, order: str) -> Any:  # noqa: ANN401 - whatever can be compared
    return row.started_at or 0.0 if order == "started_at" else getattr(row, order)
