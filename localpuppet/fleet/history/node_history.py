"""The history of this node: summaries of its runs, decided requests, one file for each day.

- Equal refusals of a caller in a day are one record with a count, and so are equal requests of a
  rollout, which asks until a step is over. Other requests count only if they repeat the caller's
  last one, so that their order stays visible.
- A count is written whenever it has doubled: a flood of refused requests costs few writes.
- Beyond the limit of a day, all further requests of a caller are one record.
- The files are `history/KIND/DAY` in the state directory, where DAY is the number of the UTC day
  since 1970. A file that this version cannot read is replaced.
- Each change replaces one file durably. Runs, refused applies and the agent may write at the same
  time, so a writer has the lock `history/KIND.lock`.
- Only the days nearest to the last record stay, so a clock that jumped removes nothing for long.
"""

import asyncio
import hashlib
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from datetime import timedelta
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from random import SystemRandom
from typing import Any, Generic

from localpuppet.base.bounded_dict import BoundedDict
from localpuppet.base.errors import InvalidInputError, LocalpuppetError, StateError
from localpuppet.base.formats.json_file import read_json
from localpuppet.base.formats.names import NodeName, ReleasePath
from localpuppet.base.formats.schema_number import check_schema
from localpuppet.base.formats.text import shortened
from localpuppet.base.formats.values import mapping_of
from localpuppet.base.machine import files
from localpuppet.base.machine.flock import Flock
from localpuppet.base.machine.ports import Clock, LineKind, Log
from localpuppet.fleet.bus.bus_limits import MAX_RUN_COUNT, MAX_RUN_TEXT
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.bus.layout import HISTORY
from localpuppet.fleet.bus.store_calls import StoreChange, is_outage, ours
from localpuppet.fleet.history.history_records import (
    AUDIT,
    RUNS,
    SLOTS,
    AuditDecision,
    AuditRecord,
    HistoryDay,
    HistoryForm,
    R,
    ResourceSummary,
    RunCounts,
    RunSummary,
    day_of,
    history_key,
    parse_day,
)
from localpuppet.fleet.inventory.run_end import RunEnd
from localpuppet.fleet.trust.signing import MessageSigner
from localpuppet.node.puppet.fault import public_place, public_reference
from localpuppet.node.puppet.report import Resources
from localpuppet.node.puppet.resources import ReportedResource, ResourceResult, resources_of
from localpuppet.node.releases.release_records import TagMemory
from localpuppet.node.runs.run import Attempt, Outcome, RunState, Status
from localpuppet.node.runs.run_records import Records, RunDirectory
from localpuppet.node.runs.run_replies import report_of

# Runs of which the first history is made, at most.
MAX_FIRST = 500
# Runs before the last one that are searched for an interrupted one.
LOOKED_AT = 8
# A class in a containment path: other resources have a title in brackets.
_CLASS = re.compile(r"[A-Z]\w*(::[A-Z]\w*)*\Z", re.ASCII)


def last_end(records: Records, interval: float | None) -> RunEnd | None:
    """Return the end of a node's last finished run; `None` before the first one."""
    last = next(records.finished(), None)
    return None if last is None else RunEnd.of_run(last, records.streak(last), interval)


def summarise_run(
    run: RunDirectory, status: Status, end: RunEnd, *, commit: str | None
) -> RunSummary:
    """Return the summary of a finished run; `commit` is that of its release."""
    request: Mapping[str, Any] = {}
    with suppress(FileNotFoundError, StateError):
        request = run.read_request()
    resources = _resources(run)
    corrective = sum(resource.corrective_change for resource in resources)
    summary = RunSummary.of(
        end,
        commit=commit,
        environment=shortened(str(request.get("environment") or ""), MAX_RUN_TEXT),
        cause=shortened(str(request.get("cause") or ""), MAX_RUN_TEXT),
        counts=_counts(status, corrective),
    )
    return summary.within_limits(resources)


def recent_runs(records: Records) -> Iterator[tuple[RunDirectory, Status]]:
    """Yield the finished runs of the days that the bus has, the newest first."""
    ids = records.ids()
    for run in ids[:MAX_FIRST]:
        if ids[0].time - run.time > timedelta(days=SLOTS - 1):
            return
        directory = RunDirectory(records.directory / run)
        status = records.status(directory)
        if status.state is RunState.FINISHED:
            yield directory, status


def interrupted_before(
    records: Records, run: RunDirectory
) -> Iterator[tuple[RunDirectory, Status]]:
    """Yield the runs directly before a run whose supervisors died, so that no run reported them."""
    older = [run_id for run_id in records.ids() if run_id < run.id]
    for before in older[:LOOKED_AT]:
        directory = RunDirectory(records.directory / before)
        status = records.status(directory)
        if status.outcome is not Outcome.INTERRUPTED:
            return
        yield directory, status


def _resources(run: RunDirectory) -> list[ResourceSummary]:
    try:
        raw = report_of(run)
        states = resources_of(raw)
    except (FileNotFoundError, StateError, ValueError):
        return []  # the run's own record has the reason
    listed = (raw.get("resource_statuses") or {}).values()
    statuses = {str(status["resource"]): status for status in listed}
    return [
        _resource(resource, statuses[resource.resource])
        for resource in states
        if resource.result is not ResourceResult.UNCHANGED
    ]


def _resource(resource: ReportedResource, status: Mapping[str, Any]) -> ResourceSummary:
    kind, _, title = public_reference(resource.resource).partition("[")
    line = resource.line
    return ResourceSummary(
        type=kind,
        title=title.removesuffix("]"),
        status=resource.result,
        file=public_place(resource.file, None),
        line=line if line is not None and 0 <= line <= MAX_RUN_COUNT else None,
        corrective_change=status.get("corrective_change") is True,
        containing_class=_class_of(status.get("containment_path")),
    )


def _class_of(path: object) -> str:
    """Return the last class in a containment path; empty without one."""
    names = map(str, reversed(path)) if isinstance(path, list) else ()
    return next((name for name in names if _CLASS.match(name) and len(name) <= MAX_RUN_TEXT), "")


def _counts(status: Status, corrective: int) -> RunCounts:
    numbers = asdict(status.resources or Resources())
    bounded = {name: max(0, min(count, MAX_RUN_COUNT)) for name, count in numbers.items()}
    return RunCounts(**bounded, corrective=corrective)


# Records of one caller in a day. A day has 200 in all.
MAX_OF_CALLER = {AuditDecision.ACCEPTED: 60, AuditDecision.REFUSED: 15}
MAX_CALLERS = 1000
FURTHER = "further requests of this caller"
_Key = tuple[str, str, AuditDecision, str]


@dataclass(slots=True)
class _CallerDay:
    """The records of one caller today, the newest last."""

    records: dict[_Key, AuditRecord] = field(default_factory=dict)
    counts: Counter[AuditDecision] = field(default_factory=Counter)


class Auditor:
    """Records decisions: `append` stores a record, and replaces an earlier one of its identity.

    A record that cannot be stored is logged: the request is decided anyway.
    """

    def __init__(self, append: Callable[[AuditRecord], None], clock: Clock, log: Log) -> None:
        self._append = append
        self._clock = clock
        self._log = log
        self._day = 0
        self._callers: BoundedDict[str, _CallerDay] = BoundedDict(MAX_CALLERS)

    def record(
        self, caller: str, action: str, subject: str, *, reason: str, request: str, repeats: bool
    ) -> None:
        """Record a decision; `repeats` makes one record of equal requests of the day.

        The caller is empty without a valid signature, the action of an unreadable request, too.
        """
        now = self._clock.now().timestamp()
        new = AuditRecord(
            at=now,
            caller=shortened(caller, MAX_RUN_TEXT),
            action=action,
            subject=shortened(subject, MAX_RUN_TEXT),
            decision=AuditDecision.REFUSED if reason else AuditDecision.ACCEPTED,
            reason=shortened(reason, MAX_RUN_TEXT),
            request=request,
        )
        day = self._counted(self._today(new), new, repeats=repeats or bool(reason))
        if day.times & (day.times - 1):
            return  # not a power of two
        try:
            self._append(day)
        except LocalpuppetError as error:
            self._log.warning(f"cannot record a request: {error}", kind=LineKind.REQUEST)

    def _today(self, record: AuditRecord) -> _CallerDay:
        if day_of(record.at) != self._day:
            self._day = day_of(record.at)
            self._callers.clear()
        day = self._callers.get(record.caller)
        if day is None:
            day = self._callers[record.caller] = _CallerDay()
        return day

    def _counted(self, day: _CallerDay, new: AuditRecord, *, repeats: bool) -> AuditRecord:
        """Return the new record, or the equal one of the day with its count."""
        key = _key(new)
        known = (
            day.records.get(key) if repeats or next(reversed(day.records), None) == key else None
        )
        if known is None:
            day.counts[new.decision] += 1
            if day.counts[new.decision] > MAX_OF_CALLER[new.decision]:
                reason = FURTHER if new.reason else ""
                new = replace(new, action="", subject=FURTHER, reason=reason, request="")
                key = _key(new)
                known = day.records.get(key)
        if known is not None:
            new = replace(known, times=min(known.times + 1, MAX_RUN_COUNT))
        day.records.pop(key, None)
        day.records[key] = new
        return new


def _key(record: AuditRecord) -> _Key:
    return record.action, record.subject, record.decision, record.reason


DIRECTORY = "history"
# Seconds to wait for another process, which writes one file.
PATIENCE = 10.0


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
            files.make_private(self.directory)
            files.remove_half_written(self.directory)
            self._write(self.directory, node, records)
            self._prune(max(day_of(record.at) for record in records))

    def begin(self, node: NodeName, records: Iterable[R]) -> None:
        """Write the first records, all or none, unless the log is begun."""
        with self._locked():
            if self.is_begun:
                return
            new = self.directory.with_suffix(".new")
            files.remove_tree(new)  # of a process that died
            files.make_private(new)
            self._write(new, node, records)
            with files.disk_errors(new):
                new.rename(self.directory)
                files.sync_directory(self.directory.parent)

    def days(self) -> list[int]:
        """Return the numbers of the days that the log has, the oldest first."""
        return sorted(int(name) for name in files.list_names(self.directory) if name.isdecimal())

    def stamp(self, day: int) -> int:
        """Return a number that changes with a day; 0 without one."""
        with suppress(OSError):
            return self._path(day).stat().st_mtime_ns
        return 0

    def payload(self, day: int) -> bytes | None:
        """Return the packed day; `None` without one."""
        path = self._path(day)
        with files.disk_errors(path), suppress(FileNotFoundError):
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
            files.write_durably(directory / str(day), content.with_records(added).to_payload())

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
            files.remove(self._path(day))


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
        files.write_json(self._path, {"schema": SCHEMA, "born": born, "digests": {}})
        return True

    def note(self, key: str, payload: bytes) -> None:
        """Record that a payload was written to a key."""
        digests = {**self._read(), key: _digest(payload)}
        files.write_json(self._path, {"schema": SCHEMA, "born": self._born, "digests": digests})

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
    """Writes the last days of a node's history to the bus."""

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
    """The history of a node with a bus; `interval` returns `None` while no agent is running."""

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
