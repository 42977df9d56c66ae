"""The dashboard's memory of the fleet in SQLite: the last state of nodes, and their history.

The file is `web/fleet.sqlite` in the state directory.

- A failure cause is kept as long as its runs, see also `MemoryLimits`.
- A run is kept once, as first reported, until `KEPT` seconds after its day.
- A node has at most `run_table.MOST_A_DAY` runs a day. If too many bytes are in use, the
  oldest runs of all nodes are deleted first.
- Committed data survive a kill -9; an unreadable file is an error and never looks empty.
- If several dashboards start together, one creates the file and the others wait.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Concatenate, ParamSpec, TypeVar

from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.formats.names import RunId
from localpuppet.base.machine.flock import Flock
from localpuppet.base.machine.ports import Log
from localpuppet.base.machine.sqlite import Connection, Database, EarlierFormatError, Format
from localpuppet.base.value import Value
from localpuppet.fleet.history.history_records import (
    DAY,
    AuditRecord,
    HistoryDay,
    RunSummary,
    day_of,
)
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.web.dashboard import audit_table, nodes, reported_rollouts, run_queries, run_table
from localpuppet.web.dashboard.nodes import NodeTable
from localpuppet.web.dashboard.reported_rollouts import NodeRolloutReport, ReportedRollout
from localpuppet.web.dashboard.run_table import HOUR, KEPT, RunRow, parts_of

P = ParamSpec("P")
T = TypeVar("T")
FILE = Path("web", "fleet.sqlite")
# Days by which the id of a run may be of later: such a one would never become too old.
AHEAD = 1
# Seconds for which a page waits for another one that makes the file.
PATIENCE = 30.0
_VERSION = 12
_TABLES = (
    run_table.TABLES
    + reported_rollouts.TABLES
    + audit_table.TABLES
    + nodes.TABLES
    + """
CREATE TABLE IF NOT EXISTS failures (
    failure_cause TEXT PRIMARY KEY, first REAL NOT NULL, last REAL NOT NULL, node TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS failures_of_node ON failures (node, last);
CREATE TABLE IF NOT EXISTS taken (key INTEGER PRIMARY KEY, digest INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS state (one INTEGER PRIMARY KEY, last_updated REAL) STRICT;
INSERT OR IGNORE INTO state VALUES (1, NULL);
"""
)
# Rows of nodes have another form since formats 10 and 11; the bus and the history have them. Since
# format 12, runs have the place of their first error.
_NO_ROWS = "DROP TABLE nodes; UPDATE state SET last_updated = NULL;"
_CONVERSIONS = {
    9: run_table.CONVERSION + _NO_ROWS,
    10: run_table.PLACES + _NO_ROWS,
    11: run_table.PLACES,
}


class MemoryLimits(Value):
    """Limits of the memory; `size` is the bytes in use in the file."""

    size: int = 2 * 2**30
    together: int = 10_000
    failures: int = 5_000
    failures_of_node: int = 100
    free_pages: int = 16_384
    released_pages: int = 1_000


class DashboardStore:
    """The memory; `snapshot` lends a connection that sees no later write."""

    def __init__(
        self, path: Path, *, now: Callable[[], float], limits: MemoryLimits = MemoryLimits()
    ) -> None:
        self._database = Database(
            path,
            Format(tables=_TABLES, version=_VERSION, conversions=_CONVERSIONS),
            damaged="move the file away: the dashboard creates a new one",
            shrinks=True,
        )
        self._now = now
        self._limits = limits
        self.path = path
        self.snapshot = self._database.snapshot

    def begin(
        self, waits: Callable[[], None] = lambda: None, *, patience: float = PATIENCE
    ) -> bool:
        """Create the file, and delete one of an earlier version; return whether one existed.

        `waits` is called before waiting for another dashboard, for at most `patience` seconds.
        """
        path = self._database.path.with_suffix(".lock")
        with Flock.need(
            path,
            f"another dashboard did not create its database within {patience:.0f} s",
            hint=f"stop that dashboard: 'fuser {path}' shows its process",
            seconds=patience,
            waits=waits,
        ):
            try:
                with self._database.use():
                    return False
            except EarlierFormatError:
                self._database.remove()
            with self._database.use():
                return True

    def last_updated(self) -> float | None:
        """Return when the bus last answered: seconds since 1970; `None` if never."""
        with self._database.snapshot() as connection:
            row = connection.execute("SELECT last_updated FROM state").fetchone()
        return None if row[0] is None else float(row[0])

    @contextmanager
    def changing(self, *, last_updated: float | None = None) -> Iterator[NodeTable]:
        """Yield the nodes, to change them in one transaction, and note when the bus answered."""
        with self._database.transaction() as connection, self._database.damage_errors("row"):
            table = NodeTable(connection, self._now())
            yield table
            if last_updated is not None:
                connection.execute("UPDATE state SET last_updated = ?", (last_updated,))
            if table.changed:
                self._make_room(connection)

    async def keep_sent(self, machine: str, record: AuditRecord, log: Log) -> None:
        """Write what this machine sent; a failure is only logged."""
        try:
            await asyncio.to_thread(self.write_history, (), [(machine, [record])])
        except LocalpuppetError as error:
            log.warning(f"cannot record an action: {error}")

    def write_history(
        self,
        ended: Iterable[RunRow],
        audit: Iterable[tuple[str, Sequence[AuditRecord]]],
        *,
        taken: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        """Write what nodes published about the past in one transaction; very old parts are ignored.

        `ended` are ends of runs, those of a node in order; known ones are ignored. `taken` are
        values of the bus that are stored completely: numbers of keys and of digests.
        """
        times = range(int(self._now() - KEPT), int(self._now() + AHEAD * DAY))
        with self._database.transaction() as connection:
            self._write_runs(connection, ended)
            for node, records in audit:
                recent = (record for record in records if int(record.at) in times)
                audit_table.write(connection, node, recent)
            connection.executemany("INSERT OR REPLACE INTO taken VALUES (?, ?)", taken.items())
            self._make_room(connection)

    def taken(self, keys: Sequence[int]) -> dict[int, int]:
        """Return which of some values of the bus are stored completely; see `write_history`."""
        with self._database.snapshot() as connection:
            rows = connection.execute(
                "SELECT key, digest FROM taken WHERE key IN (SELECT value FROM json_each(?))",
                (json.dumps([*keys]),),
            )
            return dict(rows)

    def _write_runs(self, connection: Connection, ended: Iterable[RunRow]) -> None:
        days = range(day_of(self._now() - KEPT), day_of(self._now()) + AHEAD + 1)
        writing = run_table.RunTableWriter(connection)
        for result in ended:
            within = parts_of(RunId(result.run))[0] in days and day_of(result.finished_at) in days
            if within and writing.add(result):
                _note_failure(connection, result, most=self._limits.failures_of_node)

    def _make_room(self, connection: Connection) -> None:
        while _bytes(connection) > self._limits.size:
            if not run_table.take_away(connection, most=self._limits.together):
                break

    def read(
        self, question: Callable[Concatenate[Connection, P], T], *args: P.args, **more: P.kwargs
    ) -> T:
        """Return the answer to a question of `tables`; it reads the file, so it needs a thread."""
        with self.snapshot() as connection, self._database.damage_errors("row"):
            return question(connection, *args, **more)

    def runs(self, node: str, *, limit: int, before: RunId | None = None) -> list[RunRow]:
        """Return the runs of a node before a run (`None`: all), newest first."""
        return self.read(run_queries.of_node, node, limit=limit, before=before)

    def hours(self, since: float) -> Mapping[tuple[int, Kind], int]:
        """Return counts of runs by hour since 1970 and result, from the hour of a time on."""
        with self._database.snapshot() as connection:
            rows = connection.execute(
                "SELECT hour, outcome, runs FROM hours WHERE hour >= ? AND runs > 0",
                (int(since // HOUR),),
            )
            return {(hour, Kind(outcome)): runs for hour, outcome, runs in rows}

    def begins_at(self) -> float | None:
        """Return the first hour with runs, seconds since 1970; `None` without one."""
        with self._database.snapshot() as connection:
            (hour,) = connection.execute("SELECT min(hour) FROM hours WHERE runs > 0").fetchone()
        return None if hour is None else hour * HOUR

    def reported_rollouts(self) -> list[ReportedRollout]:
        """Return the rollouts that nodes reported, newest first."""
        return self.read(reported_rollouts.all_, now=self._now())

    def holding(self) -> Mapping[str, tuple[NodeRolloutReport, ...]]:
        """Return the reports of nodes about rollouts that hold them, by node."""
        return self.read(reported_rollouts.holding, now=self._now())

    def prune(self) -> bool:
        """Delete some outdated data; return whether more of the same day may remain.

        A day at a time, so that an hour with a wrong clock loses some days and not all.
        """
        oldest = self._now() - KEPT
        with self._database.transaction() as connection:
            first = run_table.first_day(connection)
            away = run_table.take_away(connection, until=day_of(oldest), most=self._limits.together)
            left = run_table.first_day(connection)
            if left is not None:
                oldest = min(oldest, left * DAY)
            connection.execute("DELETE FROM hours WHERE hour < ?", (int(oldest // HOUR),))
            reported_rollouts.take_away(connection, oldest=oldest)
            audit_table.take_away(connection, oldest=oldest)
            connection.execute("DELETE FROM failures WHERE last < ?", (oldest,))
            connection.execute(
                "DELETE FROM failures WHERE failure_cause NOT IN"
                " (SELECT failure_cause FROM failures ORDER BY last DESC LIMIT ?)",
                (self._limits.failures,),
            )
        return (away > 0 and left == first) or self._give_back()

    def _give_back(self) -> bool:
        """Return long unused pages of the file to the disk; return whether it had any."""
        limits = self._limits
        with self._database.use() as connection:
            spare = _pragma(connection, "freelist_count") > limits.free_pages
            if spare:
                # A script runs to its end: each page is a step of the statement.
                connection.executescript(f"PRAGMA incremental_vacuum({limits.released_pages})")
        return spare

    def close(self) -> None:
        self._database.close()


def _note_failure(connection: Connection, result: RunRow, *, most: int) -> None:
    if result.failure_cause:
        connection.execute(
            "INSERT INTO failures VALUES (?1, ?2, ?2, ?3) ON CONFLICT (failure_cause) DO UPDATE"
            " SET first = min(first, ?2), last = max(last, ?2)",
            (result.failure_cause, result.finished_at, result.node),
        )
        connection.execute(
            "DELETE FROM failures WHERE failure_cause IN (SELECT failure_cause FROM failures"
            " WHERE node = ? ORDER BY last DESC LIMIT -1 OFFSET ?)",
            (result.node, most),
        )


def _bytes(connection: Connection) -> int:
    """Return how many bytes of the file are in use."""
    pages = _pragma(connection, "page_count") - _pragma(connection, "freelist_count")
    return pages * _pragma(connection, "page_size")


def _pragma(connection: Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


_BYTES = 8


@dataclass(slots=True, eq=False)
class HistoryIntake:
    """Takes days of history.

    Of each value on the bus the memory has eight bytes of two digests: of the key and of the value.
    They are written with the next batch, so after a kill some values are verified again. `waiting`
    is called with the number of days whose history is not complete yet; `None` if the bus denies
    it.
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
            (RunRow.of_summary(day.node, record) for day in runs for record in day.records),
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
