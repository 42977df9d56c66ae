"""Rollouts as rows of a list, and one rollout group by group."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from localpuppet.base.formats.names import RolloutId
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.times import parse_time
from localpuppet.fleet.triggers.outcome import succeeded
from localpuppet.rollout.execution.checkpoint import Summary
from localpuppet.rollout.execution.events import NodeResult
from localpuppet.rollout.execution.report import OPEN, RolloutReport
from localpuppet.web.dashboard.lists.list_query import ListQuery
from localpuppet.web.dashboard.reported_rollouts import NodeRolloutReport, ReportedRollout

DAMAGED = "damaged"
# The state of a rollout that only nodes report: whether it holds one of them.
HOLDING, RELEASED = "holding", "released"
NODES = "reported by nodes"
RUNNING, CHECKING = "running", "being checked"
# Nodes that a page names of all groups together, and of one at least.
MOST_NODES, FEWEST = 200, 8
_BAD = (NodeResult.FAILED, NodeResult.UNRESPONSIVE, NodeResult.NOT_REACHED)
_FIRST = {"bad": 0, RUNNING: 1, CHECKING: 2, OPEN: 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRow:
    """A rollout in a list.

    Attributes:
        id: Its id.
        state: Its state: a word of `orchestrator.rollout.report`, or `DAMAGED`.
        title: Its title.
        caller: The caller id of its operator.
        reason: The reason of the state, one line, or empty.
        started_at: Its start, seconds since 1970; `None` if unknown.
        finished_at: Its end, or `None`.
        noop: Whether it changes nothing.
        counts: Counts of nodes by result.
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
    source: str = ""
    reported: tuple[float, float] | None = None

    @classmethod
    def of(cls, report: RolloutReport) -> "RolloutRow":
        """Return the row of a rollout."""
        told = report.summary()
        return cls(
            id=str(told["id"]),
            state=str(told["state"]),
            title=one_line(str(told["title"])),
            caller=one_line(str(told["caller"])),
            reason=one_line(str(told["reason"])),
            started_at=_seconds(told["started_at"]),
            finished_at=_seconds(told["finished_at"]),
            noop=bool(told["noop"]),
            counts=tuple(told["counts"].items()),
            epoch=report.state.epoch,
        )

    @classmethod
    def of_summary(
        cls, rollout: RolloutId, told: Summary, *, caller: str, epoch: int
    ) -> "RolloutRow":
        """Return the row of a finished rollout from its checkpoint."""
        why = f": {told.reason}" if told.reason else ""
        return cls(
            id=str(rollout),
            state=str(told.ending),
            title=told.title,
            caller=caller,
            reason=f"it ended on another machine{why}",
            started_at=_seconds(told.started_at),
            finished_at=_seconds(told.finished_at),
            noop=told.noop,
            counts=tuple(told.counts.items()),
            epoch=epoch,
        )

    @classmethod
    def of_nodes(cls, told: ReportedRollout) -> "RolloutRow":
        """Return the row of a rollout that only nodes report."""
        counts: Counter[str] = Counter()
        for outcome, nodes in told.ends.items():
            counts[_fate(outcome)] += nodes
        held = f"it holds {told.held} {'node' if told.held == 1 else 'nodes'}"
        return cls(
            id=str(told.rollout),
            state=HOLDING if told.held else RELEASED,
            caller=told.caller,
            reason=held if told.held else "",
            started_at=told.rollout.began().timestamp(),
            counts=tuple(
                (fate, counts[fate])
                for fate in (NodeResult.SUCCEEDED, NodeResult.FAILED, OPEN)
                if counts[fate]
            ),
            source=NODES,
            reported=(told.first, told.last),
        )

    @property
    def nodes(self) -> int:
        """Return the number of its nodes, or of the nodes that report it."""
        return sum(count for _, count in self.counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRun:
    """A node's run in a rollout.

    Attributes:
        node: The node.
        word: Its state: an outcome, a step result, `RUNNING`, `CHECKING` or `OPEN`.
        bad: Whether it failed.
        reason: The reason, one line, or empty.
        run: Its id, or empty.
        seconds: Its duration; `None` if unknown.
    """

    node: str
    word: str
    bad: bool
    reason: str
    run: str
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Nodes that may run at the same time.

    Attributes:
        number: Its number, from 1.
        total: The number of its runs.
        ended: The number of ended runs.
        bad: The number of failed runs.
        parts: Some of the runs: failed ones first, then running ones, then the rest by name.
    """

    number: int
    total: int
    ended: int
    bad: int
    parts: tuple[RolloutRun, ...]

    @property
    def word(self) -> str:
        """Return the state of the group."""
        if self.ended == self.total:
            return "done"
        return RUNNING if any(part.word != OPEN for part in self.parts) else "waits"


def rollouts(rows: Iterable[RolloutRow], asked: ListQuery) -> list[RolloutRow]:
    """Return the requested rollouts, in order.

    Args:
        rows: All rows.
        asked: The request; its `name` is a part of an id, a title or a caller.
    """
    found = [row for row in rows if asked.name in f"{row.id}\n{row.title}\n{row.caller}".lower()]
    found.sort(key=lambda row: row.id)
    found.sort(key=lambda row: _key(row, asked.sort), reverse=asked.down)
    return found


def groups_of(report: RolloutReport) -> list[NodeGroup]:
    """Return a rollout group by group."""
    told = report.to_dict()
    skipped = {
        one["node"]: one["reason"]
        for one in told["nodes"]
        if one["result"] == str(NodeResult.SKIPPED)
    }
    most = max(FEWEST, MOST_NODES // max(1, len(told["groups"])))
    return [_group(one, skipped, most) for one in told["groups"]]


def parts_of(told: Iterable[tuple[str, NodeRolloutReport]], *, now: float) -> list[RolloutRun]:
    """Return the runs that nodes report of a rollout, in the same order.

    Args:
        told: The reports, each with the node's name.
        now: Seconds since 1970, UTC.
    """
    return [
        RolloutRun(
            node=node,
            word=one.outcome or OPEN,
            bad=_fate(one.outcome) == NodeResult.FAILED,
            reason="held" if one.until is not None and one.until > now else "",
            run=one.run,
            seconds=None,
        )
        for node, one in told
    ]


def decisions_of(report: RolloutReport) -> list[tuple[float, str]]:
    """Return the decisions about a whole rollout, each with its time, seconds since 1970."""
    return [(parse_time(at).timestamp(), what) for at, what in report.decisions]


def _fate(outcome: str) -> str:
    """Return the step result for an outcome that a node reported."""
    if not outcome:
        return OPEN
    return NodeResult.SUCCEEDED if succeeded(outcome) else NodeResult.FAILED


def _group(told: Mapping[str, Any], skipped: Mapping[str, str], most: int) -> NodeGroup:
    parts = [_part(run, skipped) for run in told["runs"]]
    parts.sort(key=lambda part: (_FIRST.get("bad" if part.bad else part.word, 4), part.node))
    over = [part for part in parts if part.word not in (RUNNING, CHECKING, OPEN)]
    return NodeGroup(
        number=told["group"],
        total=len(parts),
        ended=len(over),
        bad=sum(part.bad for part in over),
        parts=tuple(parts[:most]),
    )


def _part(run: Mapping[str, Any], skipped: Mapping[str, str]) -> RolloutRun:
    result, reason = run["result"], str(run["reason"])
    if result is None and run["started_at"]:
        word = RUNNING
    elif result is None and run["node"] in skipped:
        word, reason = str(NodeResult.SKIPPED), str(skipped[run["node"]])
    elif result is None:
        word = OPEN
    elif result == str(NodeResult.SUCCEEDED) and run["checks"] and not run["checked_at"]:
        word = CHECKING
    else:
        word = str(run["outcome"] or result)
    return RolloutRun(
        node=str(run["node"]),
        word=word,
        bad=result in map(str, _BAD),
        reason=reason,
        run=str(run["run"] or ""),
        seconds=run["seconds"],
    )


def _seconds(text: str | None) -> float | None:
    return None if text is None else parse_time(text).timestamp()


def _key(row: RolloutRow, order: str) -> float | str:
    keys: Mapping[str, float | str] = {
        "started_at": row.started_at or 0.0,
        "state": row.state,
        "title": row.title,
        "nodes": row.nodes,
    }
    return keys[order]
