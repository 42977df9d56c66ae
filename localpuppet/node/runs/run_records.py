"""The records of runs: `runs/ID/` with `request.json`, `status.json`, `log` and `report.json`.

- A record is readable while the run writes it: `status.json` is replaced, never written in place.
- A record that a dead supervisor left open, or that cannot be read, reads `interrupted` with the
  reason.
"""

import os
import re
from bisect import insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.converter import JsonRecord
from localpuppet.base.formats.json_file import json_files, read_json
from localpuppet.base.formats.names import ReleasePath, RunId
from localpuppet.base.formats.schema_number import check_schema
from localpuppet.base.formats.times import TimeText, show_time
from localpuppet.base.formats.values import mapping_of
from localpuppet.base.machine import files
from localpuppet.base.machine.flock import Flock
from localpuppet.base.machine.ports import Clock, ProcessId, ProcessTable
from localpuppet.node.runs.run import (
    SCHEMA,
    FailureStreak,
    Outcome,
    RunState,
    Status,
    failure_streak,
    new_run_id,
)

if TYPE_CHECKING:
    from localpuppet.node.runs.options import RunRequest


# How many newer gaps between runs must be as long as a gap before it counts as time that passed.
AGREEING = 3
# Freed before a record is closed, so that it can be closed on a disk that has filled up meanwhile.
RESERVE_BYTES = 16 * 1024
ABANDONED = 3600.0  # the age of a temporary file, in seconds, at which no process writes it
RECENT = 20  # runs that are looked through for a cause
GOOD_RUN_SCHEMA = 1
# Seconds for which a writer waits for another.
PATIENCE = 10.0


def outdated(ids: Sequence[RunId], *, runs: int, days: int) -> list[RunId]:
    """Return the runs that are beyond `runs` in number or `days` in age.

    A run's age is the sum of the gaps between it and the newest run. A gap counts at most as much
    as `AGREEING` newer gaps, so that a clock that jumps removes nothing.
    """
    age = timedelta(0)
    newer_gaps = [age] * AGREEING  # the longest last
    gone = []
    for index, run in enumerate(ids):
        gap = ids[max(index - 1, 0)].time - run.time
        age += min(gap, newer_gaps[-AGREEING])
        insort(newer_gaps, gap)
        if index >= runs or age > timedelta(days=days):
            gone.append(run)
    return gone


class RunDirectory:
    """`runs/ID/` of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = RunId.parse(path.name)
        self.request = path / "request.json"
        self.status = path / "status.json"
        self.log = path / "log"
        self.report = path / "report.json"
        self.queries = path / "queries.json"
        self.collected = path / "collected.json"
        self.public = path / "public"
        self._reserve = path / ".reserve"

    @property
    def is_open(self) -> bool:
        """Whether the record has not been closed."""
        return self._reserve.exists()

    def open(self, request: "RunRequest", status: Status) -> None:
        """Begin the record. Readers see it when it is complete, as the directory is renamed then.

        Raises:
            StateError: The disk refused; no part of the record remains.
        """
        directory = draft = self.path.with_name(f".{self.id}")
        try:
            with files.disk_errors(self.path):
                draft.mkdir(mode=0o700)
                (draft / self._reserve.name).write_bytes(b"\0" * RESERVE_BYTES)
                files.write_json(draft / self.request.name, request.to_dict())
                files.write_json(draft / self.status.name, status.to_dict())
                directory = draft.rename(self.path)
                files.sync_directory(self.path.parent)
        except StateError:
            _discard(directory)
            raise

    def read_request(self) -> dict[str, Any]:
        """Return the request in its JSON form.

        Raises:
            FileNotFoundError: The record was never complete, or was pruned meanwhile.
            StateError: The file is damaged or has another schema number.
        """
        request = read_json(self.request)
        check_schema(request, SCHEMA, where=str(self.request))
        return request

    def write_status(self, status: Status) -> None:
        files.write_json(self.status, status.to_dict())

    def close(self, status: Status) -> None:
        """Close the record.

        Raises:
            StateError: The disk refused; the record then reads `interrupted`.
        """
        with suppress(OSError):
            self._reserve.unlink()
        self.write_status(status)

    def clear(self) -> None:
        """Remove the files that Puppet left beside the record."""
        _discard(self.public)


class Records:
    """The records of all runs of this node; `processes` knows which supervisors live."""

    def __init__(self, directory: Path, processes: ProcessTable) -> None:
        self.directory = directory
        self._processes = processes
        self._streak: tuple[str, FailureStreak] = ("", FailureStreak())

    def running(self, run: str | None) -> RunDirectory | None:
        """Return the record of a running run; `None` if Puppet runs without a supervisor.

        Raises:
            InvalidInputError: The text is not the id of a running run.
        """
        if run is None:
            return None
        directory = RunDirectory(self.directory / RunId.parse(run))
        return directory if directory.is_open else None

    def ids(self) -> list[RunId]:
        """Return the ids of all runs, newest first."""
        ids = []
        for name in files.list_names(self.directory):
            try:
                ids.append(RunId.parse(name))
            except InvalidInputError:
                continue  # not a run
        return sorted(ids, reverse=True)

    def check_space(self, least: int) -> None:
        """Refuse a run if the disk has no room for its record.

        Raises:
            StateError: Too few bytes or inodes are free.
        """
        state = self.directory.parent
        with files.disk_errors(state):
            disk = os.statvfs(state)
        free = disk.f_bavail * disk.f_frsize
        if free < least or (disk.f_files and disk.f_favail < 64):
            raise StateError(
                f"only {free // 1048576} MiB and {disk.f_favail} inodes are free;"
                f" a run needs {least // 1048576} MiB and 64",
                where=str(state),
                hint="make room; Puppet was not started",
            )

    def create(self, clock: Clock) -> RunDirectory:
        """Return the directory for a run that starts now, without creating it."""
        files.make_private(self.directory)
        ids = self.ids()
        name = new_run_id(clock.now(), os.urandom(2).hex(), ids[0] if ids else None)
        return RunDirectory(self.directory / name)

    def get(self, name: str | None) -> RunDirectory:
        """Return the run that `name` means; the newest for `None`.

        Args:
            name: An id, or a beginning or end that only one id has; `-1` is the run before the
                newest, `-2` the one before that.

        Raises:
            InvalidInputError: The name matches no run, or several.
        """
        ids = self.ids()
        if name is None:
            if not ids:
                raise InvalidInputError(
                    "this node has no run yet",
                    where=str(self.directory),
                    hint="start one: 'localpuppet apply'; other nodes: 'localpuppet nodes'",
                )
            return RunDirectory(self.directory / ids[0])
        matches = _meant(name, ids)
        if len(matches) != 1:
            problem = "is not a run" if not matches else f"means {len(matches)} runs"
            raise InvalidInputError(
                f"{name[:60]!r} {problem} of this node",
                hint="see 'localpuppet history'; another node: 'localpuppet status --node NODE'",
            )
        return RunDirectory(self.directory / matches[0])

    def status(self, run: RunDirectory) -> Status:
        """Return the current status of a run.

        Never raises for the contents of the record: a record that is damaged, or that a dead
        supervisor left open, reads `interrupted` with the reason.
        """
        try:
            status = Status.from_dict(read_json(run.status))
        except FileNotFoundError:
            return _unreadable(run, "status.json is missing")
        except StateError as error:
            return _unreadable(run, f"status.json {error.what}")
        if status.state is RunState.FINISHED or self._processes.alive(
            ProcessId.from_dict(status.supervisor)
        ):
            return status
        # The supervisor may have closed the record between the two reads.
        try:
            again = Status.from_dict(read_json(run.status))
        except (FileNotFoundError, StateError):
            again = status
        if again.state is RunState.FINISHED:
            return again
        reason = "the supervisor died before the run ended (killed, or a reboot)"
        if self.orphaned(again):
            pid = ProcessId.from_dict(again.puppet).pid
            reason = f"the supervisor died; Puppet (pid {pid}) still runs, unsupervised"
        return again.interrupted(reason)

    def orphaned(self, status: Status) -> bool:
        """Return whether a run's Puppet outlived its supervisor and still occupies the node."""
        return self._processes.alive(ProcessId.from_dict(status.puppet))

    def is_mine(self) -> bool:
        """Return whether this process supervises the newest run."""
        ids = self.ids()
        if not ids:
            return False
        supervisor = self.status(RunDirectory(self.directory / ids[0])).supervisor
        return supervisor is not None and supervisor == asdict(self._processes.me())

    def caused_by(self, sender: str, uuid: str) -> Status | None:
        """Return the status of the newest run with a cause; `None` if no recent run has it."""
        for run in self.ids()[:RECENT]:
            directory = RunDirectory(self.directory / run)
            with suppress(FileNotFoundError, StateError):
                causes = mapping_of(directory.read_request().get("causes")).get("causes")
                known = map(mapping_of, causes if isinstance(causes, list) else [])
                if (sender, uuid) in [(cause.get("sender"), cause.get("uuid")) for cause in known]:
                    return self.status(directory)
        return None

    def in_use(self) -> list[tuple[ReleasePath, list[Path]]]:
        """Return release and modulepath of each running run, work trees included."""
        used = []
        for status in self.history():
            if status.state is RunState.FINISHED and not self.orphaned(status):
                continue
            run = RunDirectory(self.directory / status.id)
            try:
                modulepath = [Path(path) for path in run.read_request()["modulepath"]]
            except (FileNotFoundError, KeyError, TypeError) as error:
                where = str(run.request)
                raise StateError("is damaged, and its run is active", where=where) from error
            used.append((ReleasePath(status.release), modulepath))
        return used

    def history(self) -> Iterator[Status]:
        """Return every run's status, newest first."""
        return (self.status(RunDirectory(self.directory / run)) for run in self.ids())

    def finished(self) -> Iterator[Status]:
        """Return the status of every finished run, newest first."""
        return (status for status in self.history() if status.state is RunState.FINISHED)

    def last_without_noop(self, last: Status) -> Status | None:
        """Return the last finished run without noop, or `None`.

        Args:
            last: The last run, so that only a noop run is a reason to read older ones.
        """
        if last.state is not RunState.FINISHED or not last.noop:
            return last
        return next((one for one in self.finished() if not one.noop), None)

    def streak(self, last: Status) -> FailureStreak:
        """Return the failed runs since the last success; they are read once for each last run.

        Args:
            last: A finished run; with noop, only noop runs count, and else no noop runs.
        """
        if last.succeeded:
            return FailureStreak()
        if self._streak[0] != last.id:
            same = (
                status
                for status in self.history()
                if status.noop is last.noop and status.id <= last.id
            )
            self._streak = last.id, failure_streak(same)
        return self._streak[1]

    def wait(
        self,
        run: RunDirectory,
        *,
        sleep: Callable[[float], None],
        clock: Clock,
        timeout: float | None,
        tick: Callable[[float], None],
    ) -> Status:
        """Return a run's status once it has finished, or its current one after `timeout` seconds.

        Args:
            timeout: Seconds; `None` to wait while the run's supervisor lives.
            tick: Called with the seconds that have passed.
        """
        begun = clock.monotonic()
        while True:
            status = self.status(run)
            passed = clock.monotonic() - begun
            over = status.state is RunState.FINISHED and not self.orphaned(status)
            if over or (timeout is not None and passed >= timeout):
                return status
            tick(passed)
            sleep(0.1)

    def settle(self) -> None:
        """Close records that dead supervisors left open, and remove those that they did not finish.

        The caller holds the node's lock.
        """
        for name in files.list_names(self.directory):
            if name.startswith("."):
                _discard(self.directory / name)
        for name in self.ids():
            run = RunDirectory(self.directory / name)
            if run.is_open:
                status = self.status(run)
                if status.outcome is Outcome.INTERRUPTED:
                    run.close(status)
                    run.clear()

    def prune(self, *, runs: int, days: int, keep: RunId, before: Callable[[Status], None]) -> None:
        """Remove the runs that `outdated` names.

        Args:
            keep: A run that stays, as open ones do.
            before: Takes each run before it is removed; if it raises, that run and the older ones
                stay.
        """
        for name in outdated(self.ids(), runs=runs, days=days):
            run = RunDirectory(self.directory / name)
            status = self.status(run)
            if name != keep and status.state is RunState.FINISHED:
                before(status)
                _discard(run.path)

    def remove_temporary_files(self) -> None:
        """Remove what killed writers left in the state directory, and in the directories in it."""
        state = self.directory.parent
        for directory in (state, *(path for path in state.iterdir() if path.is_dir())):
            files.remove_half_written(directory, seconds=ABANDONED)


def _meant(name: str, ids: list[RunId]) -> list[RunId]:
    before = re.fullmatch(r"-([1-9][0-9]{0,5})", name)
    if before:
        return ids[int(before[1]) :][:1]
    return [run for run in ids if run.startswith(name) or run.endswith(name)] if name else []


def _unreadable(run: RunDirectory, reason: str) -> Status:
    return Status(
        id=run.id,
        state=RunState.FINISHED,
        outcome=Outcome.INTERRUPTED,
        reason=reason,
        release="?",
        started_at=show_time(run.id.time),
    )


def _discard(directory: Path) -> None:
    """Remove a directory as far as that is possible."""
    import shutil  # `status` removes nothing, and saves 2 ms

    shutil.rmtree(directory, ignore_errors=True)


class GoodRun(JsonRecord):
    """A good, whole run of an immutable release."""

    SCHEMA: ClassVar = GOOD_RUN_SCHEMA
    release: ReleasePath
    run: RunId
    finished_at: TimeText
    node_document: Mapping[str, Any]


class GoodRuns:
    """The good runs that this node can go back to; `releases` of each source are kept."""

    def __init__(self, directory: Path, *, records: Records, releases: int) -> None:
        self._directory = directory
        self._records = records
        self._releases = releases

    def keep(self, status: Status) -> None:
        """Keep a run if it is good and the newest of its release, and drop one that is too many.

        Raises:
            StateError: Another process holds the lock for too long. The earlier runs are still
                kept.
        """
        # `status` keeps nothing, and does not pay for this import.
        from localpuppet.node.releases.release_records import file_name

        good = self._recorded(status)
        if good is None:
            return
        files.make_private(self._directory)
        lock = Flock.wait(self._directory / "lock", seconds=PATIENCE, waits=lambda: None)
        if lock is None:
            raise StateError("locked by another process", where=str(self._directory))
        with lock:
            kept = {
                other.release: other
                for other in self._kept()
                if other.release.source == good.release.source
            }
            if good.release in kept and kept[good.release].run >= good.run:
                return
            kept[good.release] = good
            newest = sorted(kept.values(), key=_by_run, reverse=True)
            if good in newest[: self._releases]:
                files.write_json(self._directory / file_name(good.release), good.to_dict())
            for surplus in newest[self._releases :]:
                files.remove(self._directory / file_name(surplus.release))
            files.remove_half_written(self._directory)

    def newest(self, accept: Callable[[RunId, ReleasePath], bool]) -> GoodRun | None:
        """Return the newest good run that `accept` takes, or `None`.

        The records of runs count, too: they may have more releases, or a run that ended just before
        its supervisor was killed.
        """
        kept = (good for good in self._kept() if accept(good.run, good.release))
        best = max(kept, key=_by_run, default=None)
        for status in self._records.history():
            if best is not None and status.id <= best.run:
                break
            if accept(status.id, ReleasePath(status.release)) and (good := self._recorded(status)):
                return good
        return best

    def releases(self) -> set[ReleasePath]:
        """Return the releases that are kept, including those whose file is damaged."""
        from localpuppet.node.releases.release_records import release_of

        kept = set(map(release_of, json_files(self._directory)))
        recent: dict[str, set[ReleasePath]] = {}
        for status in self._records.history():
            release = ReleasePath(status.release)
            same_source = recent.setdefault(release.source, set())
            if status.good and release.is_tag and len(same_source) < self._releases:
                same_source.add(release)
        return kept.union(*recent.values())

    def _recorded(self, status: Status) -> GoodRun | None:
        """Return the good run of a record; `None` if the node cannot return to it."""
        release = ReleasePath(status.release)
        if not (status.good and release.is_tag):
            return None
        with suppress(FileNotFoundError, StateError, KeyError):  # being removed, or damaged
            request = RunDirectory(self._records.directory / status.id).read_request()
            return GoodRun(
                release=release,
                run=status.id,
                finished_at=status.finished_at or status.started_at,
                node_document=request["node_document"],
            )
        return None

    def _kept(self) -> Iterator[GoodRun]:
        for path in json_files(self._directory):
            with suppress(FileNotFoundError, StateError):
                yield GoodRun.from_dict(read_json(path))


def _by_run(good: GoodRun) -> RunId:
    return good.run
