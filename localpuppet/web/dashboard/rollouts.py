"""The rollouts known to this machine: from journals, checkpoints on the bus, and nodes.

- An unreadable journal is a row with the reason, and hides no other.
- Of a journal and a checkpoint, the one with the newer epoch counts: the rollout was resumed
  elsewhere.
- A rollout without either is shown from reports of nodes, and marked so.
- Whether a process runs a rollout is checked only for a reader, because the check takes the
  journal's lock for a moment.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from localpuppet.base.errors import InvalidInputError, LocalpuppetError
from localpuppet.base.formats.names import RolloutId
from localpuppet.base.formats.text import one_line, shortened
from localpuppet.base.formats.times import parse_time
from localpuppet.base.machine.waiting import wait_first
from localpuppet.base.value import Value
from localpuppet.fleet.bus.bus_limits import MAX_RUN_TEXT
from localpuppet.fleet.history.history_records import AuditDecision, AuditRecord
from localpuppet.fleet.triggers.cause import succeeded
from localpuppet.rollout import rollout_report, rollout_view
from localpuppet.rollout.checkpoints import RolloutCheckpoint
from localpuppet.rollout.events import RolloutEnded, RolloutEnding
from localpuppet.rollout.journal import JournalReader, Journals
from localpuppet.rollout.state import OPEN, ProgressState
from localpuppet.web.dashboard import reported_rollouts
from localpuppet.web.dashboard.list_query import ListQuery
from localpuppet.web.dashboard.memory import DashboardStore
from localpuppet.web.dashboard.reported_rollouts import (
    NodeRolloutReport,
    RemoteRollouts,
    ReportedRollout,
    report_of,
)

DAMAGED = "damaged"
# The state of a rollout that only nodes report: whether it holds one of them.
HOLDING, RELEASED = "holding", "released"
NODES = "reported by nodes"
# Nodes that a page names of all groups together, and of one at least.
MOST_NODES, FEWEST = 200, 8
# Rollouts on the overview: nodes name the rollouts that hold them, and a node may lie.
MOST_ACTIVE = 20
_ACTIVE = (rollout_report.RUNNING, rollout_report.PAUSED)
# Ends that left a rollout's nodes without its change, even if none of them ran.
_CUT = (rollout_report.INTERRUPTED, RolloutEnding.NOT_READY)
WEEK = 7 * 86400.0  # for which a rollout that ended halfway is on the overview
# The order of nodes in a group: what needs attention first.
_ORDER = (ProgressState.FAILED, ProgressState.RUNNING, ProgressState.WAITING)


class RolloutRow(Value):
    id: str
    state: str  # its state: a word of `RolloutReport`, or `DAMAGED`
    headline: str = ""  # the rollout in a line, see `RolloutView.headline`
    title: str = ""
    caller: str = ""
    reason: str = ""
    started_at: float | None = None
    finished_at: float | None = None
    noop: bool = False
    counts: tuple[tuple[str, int], ...] = ()
    epoch: int = 0  # how often it was started or resumed; 0 if unknown
    release: str = ""
    decisions: Sequence[tuple[float, str]] = ()  # its own decisions, see `decisions_of`
    # Those of operators: audit records by the name of the operator's machine.
    commands: Sequence[tuple[str, AuditRecord]] = ()
    source: str = ""  # `NODES` if only nodes report it
    reported: tuple[float, float] | None = None

    @classmethod
    def of(cls, summary: Mapping[str, Any]) -> "RolloutRow":
        """Return the row of a rollout; see `RolloutReport.summary`."""
        nodes, release = sum(summary["counts"].values()), one_line(str(summary["release"]))
        return cls(
            id=str(summary["id"]),
            state=str(summary["state"]),
            headline=rollout_view.show_headline(release, _nodes(nodes), str(summary["state"])),
            title=one_line(str(summary["title"])),
            caller=one_line(str(summary["caller"])),
            reason=one_line(str(summary["reason"])),
            release=release,
            started_at=_seconds(summary["started_at"]),
            finished_at=_seconds(summary["finished_at"]),
            noop=bool(summary["noop"]),
            counts=tuple(summary["counts"].items()),
            epoch=summary["epoch"],
        )

    @classmethod
    def of_report(cls, report: rollout_report.RolloutReport) -> "RolloutRow":
        view = rollout_view.RolloutView.of(
            report, parse_time(report.began)
        )  # no time is in its headline
        row = cls.of(report.summary())
        commands = [_recorded(report, *command) for command in report.commands]
        sent = {record.at for _, record in commands}
        decisions = [one for one in decisions_of(report) if one[0] not in sent]
        return replace(row, headline=view.headline, decisions=decisions, commands=commands)

    @classmethod
    def of_nodes(cls, reported: ReportedRollout) -> "RolloutRow":
        counts: Counter[ProgressState] = Counter()
        for outcome, nodes in reported.ends.items():
            counts[_reported_state(outcome)] += nodes
        state = HOLDING if reported.held else RELEASED
        return cls(
            id=str(reported.rollout),
            state=state,
            headline=rollout_view.show_headline("", _nodes(counts.total()), state),
            caller=reported.caller,
            reason=f"it holds {_nodes(reported.held)}" if reported.held else "",
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
    def is_halfway(self) -> bool:
        """Whether it left some nodes without its change, because it was refused or ended."""
        states = {word for word, _ in self.counts}
        ran, not_run = states & {"done", "failed"}, states & {*OPEN, "not reached"}
        left = bool(not_run and (ran or self.state in _CUT))
        return left and not (self.noop or self.source or "rolled back" in states)

    @property
    def nodes(self) -> int:
        """Return the number of its nodes, or of the nodes that report it."""
        return sum(count for _, count in self.counts)


class ReportedRun(Value):
    """A node's run in a rollout, as the node reports it; the detail may be a hold."""

    node: str
    state: ProgressState
    detail: str
    run: str


def active_rollouts(
    rows: Iterable[RolloutRow], holds: Mapping[str, Sequence[str]], *, now: float
) -> list[RolloutRow]:
    """Return the newest rollouts that run, wait, hold nodes or ended halfway.

    One that ended halfway is shown for a week, unless the same nodes had a later one. Those without
    a row come last.
    """
    active, later = [], set()
    for row in sorted(rows, key=lambda row: row.id, reverse=True):
        ended = row.finished_at or row.started_at or now
        halfway = row.is_halfway and ended > now - WEEK and row.title not in later
        if row.state in _ACTIVE or row.id in holds or halfway:
            active.append(row)
        if not row.noop:
            later.add(row.title)
    others = sorted(holds.keys() - {row.id for row in active}, reverse=True)
    active += [RolloutRow(id=rollout, state=HOLDING, source=NODES) for rollout in others]
    return active[:MOST_ACTIVE]


def rollouts(rows: Iterable[RolloutRow], asked: ListQuery) -> list[RolloutRow]:
    """Return the requested rollouts, in order; a name is a part of id, title, caller or release."""
    selected = [row for row in rows if asked.name in row.words]
    selected.sort(key=lambda row: row.id)
    selected.sort(key=lambda row: _key(row, asked.order), reverse=asked.down)
    return selected


def groups_of(
    view: rollout_view.RolloutView, line: rollout_view.TimeLine
) -> list[tuple[rollout_view.GroupView, list[tuple[rollout_view.NodeRunView, str]]]]:
    """Return the groups of a rollout for a page, with the runs that it shows, and their bars.

    A page shows the runs that need attention first, but always by name: no row changes its place.
    """
    most = max(FEWEST, MOST_NODES // max(1, len(view.all_groups)))
    shown = []
    for group in view.all_groups:
        runs = sorted(group.runs, key=lambda run: (_place(run.state), run.node))[:most]
        runs.sort(key=lambda run: run.node)
        shown.append((group, [(run, line.draw_text(run)) for run in runs]))
    return shown


def reported_runs(
    reports: Iterable[tuple[str, NodeRolloutReport]], *, now: float
) -> list[ReportedRun]:
    """Return the runs that nodes report of a rollout, in the same order."""
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


def decisions_of(report: rollout_report.RolloutReport) -> list[tuple[float, str]]:
    """Return the decisions about a whole rollout, each with its time, seconds since 1970."""
    return [(parse_time(at).timestamp(), what) for at, what in report.decisions]


def _recorded(
    report: rollout_report.RolloutReport, at: str, command: str, who: str
) -> tuple[str, AuditRecord]:
    """Return a command to a rollout as a record, after the name of its machine, or empty."""
    caller, _, machine = who.partition(" on ")
    record = AuditRecord(
        at=parse_time(at).timestamp(),
        caller=shortened(caller, MAX_RUN_TEXT),
        action=command,
        subject=f"rollout {report.state.began.id}",
        decision=AuditDecision.ACCEPTED,
        reason="",
        request="",
    )
    return machine, record


def _nodes(number: int) -> str:
    return "1 node" if number == 1 else f"{number} nodes"


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


# Seconds between two looks whether a journal has changed.
LOOK = 1.0
# Rollouts that are listed, the newest.
MOST = 500

_Stamp = tuple[float, ...]


class KnownRollout(Value):
    """The known facts of a rollout: a report, or what nodes report if no other source exists."""

    row: RolloutRow
    report: rollout_report.RolloutReport | None = None
    reports: Sequence[tuple[str, NodeRolloutReport]] = ()


@dataclass(slots=True, eq=False)
class Rollouts:
    journals: Journals
    elsewhere: RemoteRollouts
    nodes: DashboardStore
    _known: dict[RolloutId, tuple[_Stamp, RolloutRow]] = field(default_factory=dict, init=False)

    def rows(self) -> list[RolloutRow]:
        """Return the newest rollouts of this machine and of its caller, and those of others."""
        here, heads = set(self.journals.ids()), self.elsewhere.heads
        ids = sorted(here.union(heads), reverse=True)[:MOST]
        self._known = {rollout: known for rollout, known in self._known.items() if rollout in ids}
        rows = {rollout: self._row(rollout) for rollout in ids if rollout in here}
        known = [
            self._overtaken(rows.get(rollout), heads[rollout])
            if rollout in heads
            else rows[rollout]
            for rollout in ids
        ]
        theirs = (
            reported
            for reported in self.nodes.reported_rollouts()
            if reported.rollout not in here | heads.keys()
        )
        return [*known, *map(RolloutRow.of_nodes, theirs)]

    def shown(self, rollout: RolloutId) -> KnownRollout:
        """Return the known facts of a rollout; an unknown id is an error."""
        head = self.elsewhere.heads.get(rollout)
        here = rollout in self.journals.ids()
        if head is None and not here:
            reported = next(
                (item for item in self.nodes.reported_rollouts() if item.rollout == rollout), None
            )
            if reported is not None:
                reports = self.nodes.read(reported_rollouts.of_rollout, reported)
                return KnownRollout(row=RolloutRow.of_nodes(reported), reports=reports)
        mine = self._row(rollout) if here else None
        if head is not None and head.summary and (mine is None or mine.epoch < head.epoch):
            return KnownRollout(row=self._overtaken(mine, head))
        report = self.report(rollout)
        return KnownRollout(row=RolloutRow.of_report(report), report=report)

    def report(self, rollout: RolloutId) -> rollout_report.RolloutReport:
        """Return the report of a rollout; an error if only another machine has it."""
        head = self.elsewhere.heads.get(rollout)
        if head is None:
            return _report(self.journals.open(rollout))
        mine = None
        if rollout in self.journals.ids():
            mine = _report(self.journals.open(rollout))
            if mine.state.epoch >= head.epoch:
                return mine
        if (theirs := report_of(head)) is not None:
            return theirs
        if mine is None:
            raise InvalidInputError(_elsewhere_reason(head), where=str(rollout))
        return replace(mine, word=rollout_report.ELSEWHERE)

    async def watch(
        self, changed: Callable[[], None], leave: asyncio.Event, *, interval: float = LOOK
    ) -> None:
        """Call `changed` at the start and for each change, until `leave` is set.

        It looks every `interval` seconds. An unreadable journal does not count as a change.
        """
        before: Mapping[RolloutId, _Stamp] | None = None
        while not leave.is_set():
            now = await asyncio.to_thread(self._stamps)
            if now is not None and now != before:
                before = now
                changed()
            await wait_first(leave, seconds=interval)

    def _stamps(self) -> Mapping[RolloutId, _Stamp] | None:
        """Return when each journal was last written; `None` if one cannot be read."""
        try:
            ids = self.journals.ids()[:MOST]
            return {rollout: _stamp(self.journals.open(rollout)) for rollout in ids}
        except LocalpuppetError:
            return None  # the list shows the error

    def _row(self, rollout: RolloutId) -> RolloutRow:
        try:
            journal = self.journals.open(rollout)
            stamp = _stamp(journal)
            known = self._known.get(rollout)
            if known is not None and known[0] == stamp and known[1].finished_at is not None:
                return known[1]
            row = RolloutRow.of_report(_report(journal))
        except LocalpuppetError as error:
            return RolloutRow(id=str(rollout), state=DAMAGED, reason=str(error))
        self._known[rollout] = stamp, row
        return row

    def _overtaken(self, mine: RolloutRow | None, head: RolloutCheckpoint) -> RolloutRow:
        """Return the row of a rollout with a checkpoint, and perhaps a journal here."""
        if mine is not None and mine.epoch >= head.epoch:
            return mine
        if head.summary is not None:
            summary = head.summary.to_dict(head.rollout, head.epoch)
            why = f": {head.summary.reason}" if head.summary.reason else ""
            summary["reason"] = f"it ended on another machine{why}"
            return RolloutRow.of({**summary, "caller": self.elsewhere.caller})
        if (theirs := report_of(head)) is not None:
            mine = RolloutRow.of_report(theirs)
        row = mine or RolloutRow(id=str(head.rollout), state=rollout_report.ELSEWHERE)
        return replace(row, state=rollout_report.ELSEWHERE, reason=_elsewhere_reason(head))


def _elsewhere_reason(head: RolloutCheckpoint) -> str:
    """Return the state of a rollout in a checkpoint, one line."""
    if head.over:
        return "it continued on another machine, and has ended"
    if any(isinstance(event, RolloutEnded) for _, event in head.events[-1:]):
        return f"it was stopped on another machine at {head.events[-1][0]}, and can be resumed"
    at = f", last checkpoint at {head.events[-1][0]}" if head.events else ""
    return f"it runs on another machine, if its process still exists{at}"


def _stamp(journal: JournalReader) -> _Stamp:
    return tuple(_written(path) for path in (journal.path, Path(f"{journal.path}-wal")))


def _report(journal: JournalReader) -> rollout_report.RolloutReport:
    with closing(journal):
        return journal.report()


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
