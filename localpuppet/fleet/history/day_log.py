"""The history of this node on its disk: one file for each day, packed as on the bus.

- The files are `history/KIND/DAY` in the state directory, where DAY is the number of the UTC day
  since 1970. A file that this version cannot read is replaced.
- Each change replaces one file durably. Runs, refused applies and the agent may write at the same
  time, so a writer has the lock `history/KIND.lock`.
- Only the days nearest to the last record stay, so a clock that jumped removes nothing for long.
"""

from collections.abc import Iterable
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Generic, TypeVar

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.machine.files import (
    disk_errors,
    list_names,
    make_private,
    remove,
    remove_half_written,
    remove_tree,
    sync_directory,
    write_durably,
)
from localpuppet.base.machine.flock import Flock
from localpuppet.fleet.history.day import HistoryDay, HistoryForm, HistoryRecord, day_of, parse_day

DIRECTORY = "history"
# Seconds to wait for another process, which writes one file.
PATIENCE = 10.0
R = TypeVar("R", bound=HistoryRecord)


class DayLog(Generic[R]):
    """The days of one kind of history.

    Args:
        state: The state directory.
        form: The kind.
    """

    def __init__(self, state: Path, form: HistoryForm[R]) -> None:
        self.form = form
        self.directory = state / DIRECTORY / form.kind

    @property
    def is_begun(self) -> bool:
        """Whether the log has been written before."""
        return self.directory.is_dir()

    def append(self, node: NodeName, *records: R) -> None:
        """Add records; one with a known identity replaces the other.

        Args:
            node: This node's name.
            records: The records.

        Raises:
            BusyError: Another process writes for longer than `PATIENCE`.
        """
        with self._locked():
            make_private(self.directory)
            remove_half_written(self.directory)
            self._write(self.directory, node, records)
            self._prune(max(day_of(record.at) for record in records))

    def begin(self, node: NodeName, records: Iterable[R]) -> None:
        """Write the first records, all or none, unless the log is begun.

        Raises:
            BusyError: See `append`.
        """
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
