"""Takes the history that nodes publish into the dashboard's memory; a `HistoryBoard`."""

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from localpuppet.fleet.history.audit_record import AuditRecord
from localpuppet.fleet.history.day import HistoryDay
from localpuppet.fleet.history.run_summary import RunSummary
from localpuppet.web.dashboard.memory import DashboardStore
from localpuppet.web.dashboard.run_results import RunResult

_BYTES = 8


@dataclass(slots=True, eq=False)
class HistoryIntake:
    """Takes days of history.

    Of each value on the bus the memory has eight bytes of two digests: of the key and of the value.
    They are written with the next batch, so after a kill some values are verified again.

    Attributes:
        memory: The memory.
        changed: Called with each node that has new history.
        ran: Called with a node, and some of its runs that were published.
        waiting: Called with the number of days whose history is not complete yet; `None` if the
            bus denies reading it.
    """

    memory: DashboardStore
    changed: Callable[[str], None]
    ran: Callable[[str, Sequence[RunSummary]], None]
    waiting: Callable[[int | None], None]
    _noted: dict[int, int] = field(default_factory=dict, init=False)

    async def unknown(self, digests: Mapping[str, bytes]) -> AbstractSet[str]:
        """Return the keys whose values the memory lacks; see `HistoryBoard`."""
        numbers = {key: _number(key) for key in digests}
        known = await asyncio.to_thread(self.memory.taken, list(numbers.values()))
        known |= self._noted
        return {
            key for key, digest in digests.items() if known.get(numbers[key]) != _signed(digest)
        }

    def note_taken(self, key: str, digest: bytes) -> None:
        """Record that the memory has everything in a value; see `HistoryBoard`."""
        self._noted[_number(key)] = _signed(digest)

    def note_waiting(self, days: int | None) -> None:
        """Note how many days are not complete yet; see `HistoryBoard`."""
        self.waiting(days)

    async def take_runs(self, days: Sequence[HistoryDay[RunSummary]]) -> None:
        """Store run summaries; see `HistoryBoard`."""
        await self._store(days, ())

    async def take_audit(self, days: Sequence[HistoryDay[AuditRecord]]) -> None:
        """Store audit records; see `HistoryBoard`."""
        await self._store((), days)

    async def _store(
        self, runs: Sequence[HistoryDay[RunSummary]], audit: Sequence[HistoryDay[AuditRecord]]
    ) -> None:
        if not runs and not audit:
            return
        noted, self._noted = self._noted, {}  # not in the thread: others note meanwhile
        await asyncio.to_thread(
            self.memory.write_history,
            (RunResult.of_summary(day.node, record) for day in runs for record in day.records),
            [(day.node, day.records) for day in audit],
            taken=noted,
        )
        for day in runs:
            self.ran(day.node, day.records)
        for node in (*(day.node for day in runs), *(day.node for day in audit)):
            self.changed(node)


def _number(key: str) -> int:
    return _signed(hashlib.sha256(key.encode()).digest())


def _signed(digest: bytes) -> int:
    """Return the beginning of a digest as a number that SQLite can store."""
    return int.from_bytes(digest[:_BYTES], "big", signed=True)
