"""The rollouts known to this machine: from journals, checkpoints on the bus, and nodes.

- An unreadable journal is a row with the reason, and hides no other.
- Of a journal and a checkpoint, the one with the newer epoch counts: the rollout was resumed
  elsewhere.
- A rollout without either is shown from reports of nodes, and marked so.
- Whether a process runs a rollout is checked only for a reader, because the check takes the
  journal's lock for a moment.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from localpuppet.base.errors import InvalidInputError, LocalpuppetError
from localpuppet.base.formats.names import RolloutId
from localpuppet.base.machine.waiting import wait_first
from localpuppet.rollout.checkpoints import RolloutCheckpoint
from localpuppet.rollout.events import RolloutEnded
from localpuppet.rollout.journal import JournalReader, Journals
from localpuppet.rollout.rollout_report import ELSEWHERE, RolloutReport
from localpuppet.web.dashboard.lists.rollouts import DAMAGED, RolloutRow
from localpuppet.web.dashboard.memory import DashboardStore
from localpuppet.web.dashboard.remote_rollouts import NodeRolloutReport, RemoteRollouts, report_of
from localpuppet.web.dashboard.tables import reported_table

# Seconds between two looks whether a journal has changed.
LOOK = 1.0
# Rollouts that are listed, the newest.
MOST = 500

_Stamp = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRollout:
    """The known facts of a rollout.

    Attributes:
        row: Its row.
        report: Its report, if a journal or checkpoint has one.
        reports: Reports of nodes, each with the name, if no other source exists.
    """

    row: RolloutRow
    report: RolloutReport | None = None
    reports: Sequence[tuple[str, NodeRolloutReport]] = ()


@dataclass(slots=True, eq=False)
class Rollouts:
    """The rollouts.

    Attributes:
        journals: Their journals.
        elsewhere: The rollouts on other machines.
        nodes: The reports of nodes.
    """

    journals: Journals
    elsewhere: RemoteRollouts
    nodes: DashboardStore
    _known: dict[RolloutId, tuple[_Stamp, RolloutRow]] = field(default_factory=dict, init=False)

    def rows(self) -> list[RolloutRow]:
        """Return the newest rollouts of this machine and of its caller, and those of others.

        Raises:
            StateError: The journals cannot be listed.
        """
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
        """Return the known facts of a rollout.

        Raises:
            InvalidInputError: The id is unknown.
            StateError: Its journal or the memory cannot be read.
        """
        head = self.elsewhere.heads.get(rollout)
        here = rollout in self.journals.ids()
        if head is None and not here:
            reported = next(
                (item for item in self.nodes.reported_rollouts() if item.rollout == rollout), None
            )
            if reported is not None:
                reports = self.nodes.read(reported_table.of_rollout, reported)
                return KnownRollout(row=RolloutRow.of_nodes(reported), reports=reports)
        mine = self._row(rollout) if here else None
        if head is not None and head.summary and (mine is None or mine.epoch < head.epoch):
            return KnownRollout(row=self._overtaken(mine, head))
        report = self.report(rollout)
        return KnownRollout(row=RolloutRow.of(report.summary()), report=report)

    def report(self, rollout: RolloutId) -> RolloutReport:
        """Return the report of a rollout.

        Raises:
            InvalidInputError: The id is unknown, or only another machine has the report.
            StateError: Its journal cannot be read.
        """
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
        return replace(mine, word=ELSEWHERE)

    async def watch(
        self, changed: Callable[[], None], leave: asyncio.Event, *, interval: float = LOOK
    ) -> None:
        """Call `changed` at the start and for each change, until `leave` is set.

        An unreadable journal does not count as a change.

        Args:
            changed: Called for each change.
            leave: Ends the watch.
            interval: Seconds between two looks.
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
            row = RolloutRow.of(_report(journal).summary())
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
            mine = RolloutRow.of(theirs.summary())
        row = mine or RolloutRow(id=str(head.rollout), state=ELSEWHERE)
        return replace(row, state=ELSEWHERE, reason=_elsewhere_reason(head))


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


def _report(journal: JournalReader) -> RolloutReport:
    with closing(journal):
        return journal.report()


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
