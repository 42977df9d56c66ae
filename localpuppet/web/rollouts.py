"""The rollouts of this machine, read from their journals.

Owns: what of journals is remembered between two looks, and noticing that one has changed. Refuses
to know: what events mean, who goes on with a rollout.

Invariants:

- A journal that cannot be read is a row that says so, and hides no other.
- Whether a process goes on with a rollout is asked only for somebody who looks: to ask is to have
  the journal's lock for a moment.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from localpuppet.errors import LocalpuppetError
from localpuppet.formats.names import RolloutId
from localpuppet.orchestrator.rollout.journal import Journal, Journals
from localpuppet.orchestrator.rollout.report import Report
from localpuppet.web.lists.rollouts import DAMAGED, RolloutRow

# Seconds between two looks whether a journal has changed.
LOOK = 1.0
# Rollouts that are listed, the newest.
MOST = 500

_Stamp = tuple[float, ...]


class Rollouts:
    """The rollouts.

    Args:
        journals: Their journals.
    """

    def __init__(self, journals: Journals) -> None:
        self._journals = journals
        self._known: dict[RolloutId, tuple[_Stamp, RolloutRow]] = {}

    def rows(self) -> list[RolloutRow]:
        """Return the newest rollouts, the newest first.

        Raises:
            StateError: It cannot be told which there are.
        """
        ids = self._journals.ids()[:MOST]
        self._known = {one: known for one, known in self._known.items() if one in ids}
        return [self._row(one) for one in ids]

    def report(self, rollout: RolloutId) -> Report:
        """Return what is known of a rollout.

        Raises:
            InvalidInputError: There is none of this id.
            StateError: Its journal cannot be read.
        """
        return _report(self._journals.open(rollout))

    def stamps(self) -> Mapping[RolloutId, _Stamp]:
        """Return when which journal was written: the same as long as nothing has happened.

        Raises:
            StateError: It cannot be told.
        """
        return {one: _stamp(self._journals.open(one)) for one in self._journals.ids()[:MOST]}

    async def watch(self, changed: Callable[[], None], leave: asyncio.Event) -> None:
        """Tell of each change until `leave` is set, and of how it is at first.

        What cannot be read is no change.
        """
        before: Mapping[RolloutId, _Stamp] | None = None
        while not leave.is_set():
            now = await asyncio.to_thread(self._stamps_or_none)
            if now is not None and now != before:
                before = now
                changed()
            with suppress(TimeoutError):
                await asyncio.wait_for(leave.wait(), LOOK)

    def _stamps_or_none(self) -> Mapping[RolloutId, _Stamp] | None:
        try:
            return self.stamps()
        except LocalpuppetError:
            return None  # whoever looks at the list is told

    def _row(self, rollout: RolloutId) -> RolloutRow:
        try:
            journal = self._journals.open(rollout)
            stamp = _stamp(journal)
            known = self._known.get(rollout)
            if known is not None and known[0] == stamp and known[1].ended is not None:
                return known[1]
            row = RolloutRow.of(_report(journal))
        except LocalpuppetError as error:
            return RolloutRow(id=str(rollout), state=DAMAGED, why=str(error))
        self._known[rollout] = stamp, row
        return row


def _stamp(journal: Journal) -> _Stamp:
    return tuple(_written(path) for path in (journal.path, Path(f"{journal.path}-wal")))


def _report(journal: Journal) -> Report:
    try:
        return Report.of(journal.events(), taken=journal.taken)
    finally:
        journal.close()


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
