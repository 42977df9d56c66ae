"""The history of this node on its bus: one file for each day, published when its content is new.

- The files are `history/KIND/DAY` in the state directory, where DAY is the number of the UTC day
  since 1970. A file that this version cannot read is replaced.
- Each change replaces one file durably. Runs, refused applies and the agent may write at the same
  time, so a writer has the lock `history/KIND.lock`.
- Only the days nearest to the last record stay, so a clock that jumped removes nothing for long.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from random import SystemRandom
from typing import Any, Generic, TypeVar

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, StateError
from localpuppet.base.formats.json_file import read_json
from localpuppet.base.formats.names import NodeName, ReleasePath
from localpuppet.base.formats.schema_number import check_schema
from localpuppet.base.formats.text import shortened
from localpuppet.base.formats.values import mapping_of
from localpuppet.base.machine.files import (
    disk_errors,
    list_names,
    make_private,
    remove,
    remove_half_written,
    remove_tree,
    sync_directory,
    write_durably,
    write_json,
)
from localpuppet.base.machine.flock import Flock
from localpuppet.base.machine.ports import Clock, LineKind, Log
from localpuppet.fleet.bus.bus_limits import MAX_RUN_TEXT
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.bus.layout import HISTORY
from localpuppet.fleet.bus.outage import StoreChange, is_outage, ours
from localpuppet.fleet.history.audit_record import AuditRecord
from localpuppet.fleet.history.auditing import Auditor
from localpuppet.fleet.history.day import (
    AUDIT,
    RUNS,
    SLOTS,
    HistoryDay,
    HistoryForm,
    HistoryRecord,
    day_of,
    history_key,
    parse_day,
)
from localpuppet.fleet.history.run_summary import RunSummary
from localpuppet.fleet.history.summarising import (
    interrupted_before,
    last_end,
    recent_runs,
    summarise_run,
)
from localpuppet.fleet.inventory.run_end import RunEnd
from localpuppet.fleet.trust.signing import MessageSigner
from localpuppet.node.releases.tag_memory import TagMemory
from localpuppet.node.runs.run import Attempt, Status
from localpuppet.node.runs.run_records import Records, RunDirectory

DIRECTORY = "history"
# Seconds to wait for another process, which writes one file.
PATIENCE = 10.0
R = TypeVar("R", bound=HistoryRecord)


class DayLog(Generic[R]):
    """The days of one kind of history."""

    def __init__(self, state: Path, form: HistoryForm[R]) -> None:
        self.form = form
        self.directory = state / DIRECTORY / form.kind

    @property
    def is_begun(self) -> bool:
        """Whether the log has been written before."""
        return self.directory.is_dir()

    def append(self, node: NodeName, *records: R) -> None:
        """Add records; one with a known identity replaces the other."""
        with self._locked():
            make_private(self.directory)
            remove_half_written(self.directory)
            self._write(self.directory, node, records)
            self._prune(max(day_of(record.at) for record in records))

    def begin(self, node: NodeName, records: Iterable[R]) -> None:
        """Write the first records, all or none, unless the log is begun."""
        with self._locked():
            if self.is_begun:
                return
            new = self.directory.with_suffix(".new")
            remove_tree(new)  # of a process that died
            make_private(new)
            self._write(new, node, records)
            with disk_errors(new):
                new.rename(self.directory)
                sync_directory(self.directory.parent)

    def days(self) -> list[int]:
        """Return the numbers of the days that the log has, the oldest first."""
        return sorted(int(name) for name in list_names(self.directory) if name.isdecimal())

    def stamp(self, day: int) -> int:
        """Return a number that changes with a day; 0 without one."""
        with suppress(OSError):
            return self._path(day).stat().st_mtime_ns
        return 0

    def payload(self, day: int) -> bytes | None:
        """Return the packed day; `None` without one."""
        path = self._path(day)
        with disk_errors(path), suppress(FileNotFoundError):
            return path.read_bytes()
        return None

    def _path(self, day: int) -> Path:
        return self.directory / str(day)

    def _locked(self) -> Flock:
        path = self.directory.with_suffix(".lock")
        problem = "another process is writing the node's history"
        return Flock.need(path, problem, seconds=PATIENCE)

    def _write(self, directory: Path, node: NodeName, records: Iterable[R]) -> None:
        by_day = sorted(records, key=lambda record: record.at)
        for day, added in groupby(by_day, key=lambda record: day_of(record.at)):
            before = self._read(day)
            content = HistoryDay(node=node, day=day, records=before[0], dropped=before[1])
            write_durably(directory / str(day), content.with_records(added).to_payload())

    def _read(self, day: int) -> tuple[tuple[R, ...], int]:
        """Return the records of a day, and the number of dropped ones."""
        payload = self.payload(day)
        try:
            known = None if payload is None else parse_day(payload, self.form)
        except InvalidInputError:
            known = None  # of another version or damaged
        return ((), 0) if known is None else (known.records, known.dropped)

    def _prune(self, newest: int) -> None:
        nearest = sorted(self.days(), key=lambda day: abs(newest - day))
        for day in nearest[self.form.days :]:
            remove(self._path(day))


SCHEMA = 1
# Seconds after a refusal until the next attempt, at most; spread, as a server may refuse all nodes.
RETRY = 600.0
_CHANCE = SystemRandom().random


class PublishedDays:
    """The digests of the days that the bus has, in `history/published.json`."""

    def __init__(self, state: Path) -> None:
        self._path = state / DIRECTORY / "published.json"
        self._born: float | None = None

    def has(self, payloads: Mapping[str, bytes]) -> bool:
        """Return whether each payload was the last one written to its key."""
        known = self._read()
        return all(known.get(key) == _digest(payload) for key, payload in payloads.items())

    def begin(self, born: float) -> bool:
        """Forget the days of another store than the one that began then; return whether it was."""
        self._born, known = born, self._raw()
        if not known or known.get("born") == born:
            return False
        write_json(self._path, {"schema": SCHEMA, "born": born, "digests": {}})
        return True

    def note(self, key: str, payload: bytes) -> None:
        """Record that a payload was written to a key."""
        digests = {**self._read(), key: _digest(payload)}
        write_json(self._path, {"schema": SCHEMA, "born": self._born, "digests": digests})

    def _read(self) -> dict[str, Any]:
        return dict(mapping_of(self._raw().get("digests")))

    def _raw(self) -> Mapping[str, Any]:
        try:
            raw = read_json(self._path)
            check_schema(raw, SCHEMA)
        except (FileNotFoundError, StateError):
            return {}  # then all days are written once more
        return raw


@dataclass(slots=True, eq=False)
class HistoryPublisher:
    """Writes the last days of a node's history to the bus.

    Attributes:
        store: Returns the connected bus; raises `UnavailableError` during an outage.
    """

    node: NodeName
    logs: Sequence[DayLog[Any]]
    published: PublishedDays
    _: KW_ONLY
    signer: MessageSigner
    store: Callable[[], Awaitable[KeyValue]]
    clock: Clock
    log: Log
    _stamps: dict[str, int] = field(default_factory=dict, init=False)
    _retry_at: float = field(default=0.0, init=False)
    _reported: str = field(default="", init=False)
    _change: StoreChange = field(default_factory=partial(StoreChange, HISTORY), init=False)

    async def step(self) -> None:
        """Publish the days that changed; log a refusal once, and try again later."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._retry_at:
            return
        try:
            await self.publish()
        except LocalpuppetError as error:
            # The agent logs an outage, and its store fails at once until the bus is reachable.
            if is_outage(error):
                return
            self._retry_at = loop.time() + RETRY * (1 + _CHANCE()) / 2
            if str(error) != self._reported:
                self.log.warning(f"cannot publish the history: {error}", kind=LineKind.INVENTORY)
            self._reported = str(error)
            return
        self._reported = ""

    async def publish(self) -> None:
        """Publish the days that changed."""
        kv = await ours(self.store())
        if await self._change.noticed(kv) and self.published.begin(self._change.born):
            self._stamps.clear()
        for log, day in _last_days(self.logs, self.clock):
            key, stamp = history_key(self.node, log.form.kind, day), log.stamp(day)
            # Days share keys, so the stamp of another day is another number.
            if self._stamps.get(key) == stamp:
                continue
            payload = log.payload(day)
            if payload is not None and not self.published.has({key: payload}):
                await ours(kv.put(key, self.signer.sign(payload, log.form.message)))
                self.published.note(key, payload)
            self._stamps[key] = stamp


def is_published(
    node: NodeName, logs: Sequence[DayLog[Any]], published: PublishedDays, clock: Clock
) -> bool:
    """Return whether the bus has the last days of a node's history."""
    return published.has(
        {
            history_key(node, log.form.kind, day): log.payload(day) or b""
            for log, day in _last_days(logs, clock)
        }
    )


def _last_days(logs: Sequence[DayLog[Any]], clock: Clock) -> Iterator[tuple[DayLog[Any], int]]:
    """Yield the days that have a key: not those of a clock that was ahead."""
    today = day_of(clock.now().timestamp())
    for log in logs:
        for day in log.days():
            if today - SLOTS < day <= today:
                yield log, day


def _digest(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()


Store = Callable[[], Awaitable[KeyValue]]


class NodeHistory:
    """The history of a node whose settings name a bus; other nodes have none.

    Args:
        interval: Returns the seconds between the runs of the agent's timer; `None` while no agent
            is running.
    """

    def __init__(
        self,
        state: Path,
        *,
        name: Callable[[], NodeName],
        records: Records,
        interval: Callable[[], float | None],
        clock: Clock,
    ) -> None:
        self._name = name
        self._tags = TagMemory(state)
        self._runs, self._audit = DayLog(state, RUNS), DayLog(state, AUDIT)
        self._logs = (self._runs, self._audit)
        self._published = PublishedDays(state)
        self._records = records
        self._interval = interval
        self._clock = clock

    def after_run(self, run: RunDirectory, status: Status) -> None:
        """Record a finished run, and runs before it whose supervisors died."""
        name = self._name()
        if not self._runs.is_begun:
            self._runs.begin(name, map(self._summary, recent_runs(self._records)))
        ended = [*interrupted_before(self._records, run), (run, status)]
        self._runs.append(name, *map(self._summary, ended))

    def after_refusal(self, attempt: Attempt) -> None:
        """Record a refused apply."""
        before = last_end(self._records, self._every)
        end = RunEnd.of_attempt(attempt, before, self._every)
        summary = RunSummary.of(end, cause=shortened(attempt.cause, MAX_RUN_TEXT))
        self._runs.append(self._name(), summary)

    def after_command(self, user: str, action: str, subject: str) -> None:
        """Record that a user changed the holds on this node by a command."""
        at = self._clock.now().timestamp()
        self._audit.append(self._name(), AuditRecord.of_command(user, action, subject, at=at))

    def is_published(self) -> bool:
        """Return whether the bus has the history that this node has to publish."""
        return is_published(self._name(), self._logs, self._published, self._clock)

    def auditor(self, log: Log) -> Auditor:
        """Return what records the requests that this node decides."""
        return Auditor(partial(self._audit.append, self._name()), self._clock, log)

    def publisher(self, signer: MessageSigner, store: Store, log: Log) -> HistoryPublisher:
        """Return what publishes the history on a bus that `store` returns."""
        return HistoryPublisher(
            *(self._name(), self._logs, self._published),
            signer=signer,
            store=store,
            clock=self._clock,
            log=log,
        )

    @cached_property
    def _every(self) -> float | None:
        return self._interval()

    def _summary(self, ended: tuple[RunDirectory, Status]) -> RunSummary:
        run, status = ended
        pin = None
        with suppress(LocalpuppetError):
            pin = self._tags.pin(ReleasePath(status.release))
        end = RunEnd.of_run(status, self._records.streak(status), self._every)
        return summarise_run(run, status, end, commit=None if pin is None else pin.commit)
