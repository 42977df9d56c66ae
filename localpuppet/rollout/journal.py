"""The journals of rollouts: one SQLite file each, with its events, its commands and a lock.

- An event is on the disk before anything is done because of it.
- A journal exists with its first event, or not at all.
- One process at a time writes events: the rollout's controller, which holds the lock.
- A journal that cannot be read is an error, and never looks like a new rollout.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from localpuppet.base.errors import BusyError, InvalidInputError, StateError
from localpuppet.base.formats.names import RolloutId, SignerName, did_you_mean
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.times import checked_time
from localpuppet.base.machine.files import list_names, make_private, remove
from localpuppet.base.machine.flock import Flock, is_locked
from localpuppet.base.machine.sqlite import Database, Format, sqlite3
from localpuppet.rollout import events
from localpuppet.rollout.rollout_report import RolloutReport
from localpuppet.rollout.state import RolloutState

_VERSION = 2
_TABLES = """
CREATE TABLE IF NOT EXISTS events (
    number INTEGER PRIMARY KEY, at TEXT NOT NULL, event TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS commands (
    number INTEGER PRIMARY KEY AUTOINCREMENT, command TEXT NOT NULL, caller TEXT NOT NULL
) STRICT;
"""


class JournalReader:
    """Reads the events of one rollout, and leaves commands for its controller."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._database = Database(
            path,
            Format(tables=_TABLES, version=_VERSION),
            damaged="move it away; the holds of its rollout expire",
            only_made=True,
        )

    @property
    def taken(self) -> bool:
        """Whether a process controls the rollout."""
        return is_locked(self._lock_file)

    @property
    def _lock_file(self) -> Path:
        return self.path.with_suffix(".lock")

    def events(self) -> list[events.TimedEvent]:
        """Return the events with their times, the oldest first."""
        with self._database.use() as connection:
            rows = connection.execute("SELECT at, event FROM events ORDER BY number").fetchall()
        try:
            return [(checked_time(at), events.from_dict(loads(text))) for at, text in rows]
        except StateError as error:
            raise error.at(str(self.path)) from error
        except ValueError as error:
            raise StateError(f"holds a damaged event: {error}", where=str(self.path)) from error

    def state(self) -> RolloutState:
        try:
            return RolloutState.of(event for _, event in self.events())
        except StateError as error:
            raise (error if error.where else error.at(str(self.path))) from error

    def report(self) -> RolloutReport:
        taken = self.taken  # first: a rollout that ends in between is over in the events
        return RolloutReport.of(self.events(), taken=taken)

    def say(self, command: str, caller: str, about: str = "") -> None:
        """Leave a command for the process that controls the rollout; see `SentCommand`."""
        text = f"{command} {about}" if about else str(command)
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT INTO commands (command, caller) VALUES (?, ?)", (text, caller)
            )

    def remove(self) -> None:
        """Remove the file, unless a process controls the rollout."""
        lock = Flock.take(self._lock_file)
        if lock is None:
            return
        with lock:
            self._database.remove()
            remove(self._lock_file)

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        self._database.close()


class JournalWriter(JournalReader):
    """Writes the events of one rollout; locked until `close`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        make_private(path.parent)
        lock = Flock.take(self._lock_file)
        if lock is None:
            raise BusyError(
                f"another process of this machine controls rollout {path.stem}",
                hint=f"see 'localpuppet rollout status {path.stem} --watch'",
            )
        self._lock = lock

    def begin(self, began: events.RolloutBegan, *, at: str) -> None:
        """Create the file with its first event."""
        if not self._database.make(partial(_insert, [(at, began)])):
            raise StateError("already exists", where=str(self.path))

    def append(self, *events: events.Event, at: str) -> None:
        """Append events at an ISO 8601 time: all of them or none."""
        with self._database.transaction() as connection:
            _insert([(at, event) for event in events], connection)

    def replace(self, events: Sequence[events.TimedEvent]) -> None:
        """Replace all events by those of a checkpoint; create the file if it does not exist."""
        if self._database.make(partial(_insert, events)):
            return
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM events")
            _insert(events, connection)

    def commands_after(self, after: int) -> list[tuple[int, str, str, str]]:
        """Return the later commands: numbers, commands, callers, and what the commands refer to."""
        with self._database.use() as connection:
            rows = connection.execute(
                "SELECT number, command, caller FROM commands WHERE number > ? ORDER BY number",
                (after,),
            ).fetchall()
        return [
            (number, text.partition(" ")[0], caller, text.partition(" ")[2])
            for number, text, caller in rows
        ]

    def forget_commands(self) -> None:
        """Delete all commands: they were for an earlier process."""
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM commands")

    def close(self) -> None:
        """Close the file and release the lock."""
        super().close()
        self._lock.release()


def resumable(journal: JournalReader, caller: str) -> events.RolloutBegan:
    """Return the first event of a caller's rollout, which must be one that can be resumed."""
    state = journal.state()
    began = owned(state.began, caller)
    if not state.resumable and state.over is not None:
        left = [result for result in state.results().values() if result in events.REPEATED]
        nodes = f"the {len(left)} nodes" if len(left) > 1 else "the node"
        again = (
            f"'localpuppet rollout run --failed-in {began.id}' runs {nodes} that did not succeed"
        )
        missed = left.count(events.NodeResult.NOT_REACHED)
        hint = f"{again}; {missed} of them not reached" if missed else again
        raise InvalidInputError(
            f"is over: {state.over.ending}", where=str(began.id), hint=hint if left else ""
        )
    return began


def owned(began: events.RolloutBegan, caller: str) -> events.RolloutBegan:
    """Return the first event of a rollout if it is the caller's own."""
    if began.caller != caller:
        raise InvalidInputError(
            f"is a rollout of {began.caller}, not of {caller}",
            where=str(began.id),
            hint=f"take it over: --operator {SignerName.parse_caller(began.caller)}",
        )
    return began


def _insert(timed: Sequence[events.TimedEvent], connection: sqlite3.Connection) -> None:
    connection.executemany(
        "INSERT INTO events (at, event) VALUES (?, ?)",
        [(at, json.dumps(events.to_dict(event))) for at, event in timed],
    )


# Journals are removed when a rollout begins. A node remembers its runs for 30 days, so an older
# rollout cannot be resumed.
KEPT_FOR = timedelta(days=90)
KEPT_AT_MOST = 500
KEPT_ALWAYS = 20
_SUFFIX = ".sqlite"


class Journals:
    """The journals of this machine."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def ids(self) -> Sequence[RolloutId]:
        """Return the rollouts that have a journal, the newest first."""
        files = [name for name in list_names(self._directory) if name.endswith(_SUFFIX)]
        names = sorted((name.removesuffix(_SUFFIX) for name in files), reverse=True)
        return [RolloutId(name) for name in names if RolloutId.like(name)]

    def open(self, rollout: RolloutId | None) -> JournalReader:
        """Return the journal of a rollout of this machine; of the newest for `None`."""
        known = self.ids()
        if rollout is None and not known:
            raise InvalidInputError("this machine has no rollout", where=str(self._directory))
        wanted = rollout or known[0]
        if wanted not in known:
            raise InvalidInputError(
                f"this machine has no rollout {wanted}",
                where=str(self._directory),
                hint=did_you_mean(wanted, [*known[:50]]),
            )
        return JournalReader(self._path(wanted))

    def take(self, rollout: RolloutId) -> JournalWriter:
        """Return the locked journal of a rollout, whether it exists or not."""
        return JournalWriter(self._path(rollout))

    def _path(self, rollout: RolloutId) -> Path:
        return self._directory / f"{rollout}{_SUFFIX}"

    def states(self) -> Iterator[RolloutState]:
        """Yield the state of each rollout of this machine, the newest first.

        Unreadable journals are left out; 'rollout list' names them.
        """
        for rollout in self.ids():
            with closing(self.open(rollout)) as journal, suppress(StateError):
                yield journal.state()

    def forget(self, now: datetime) -> None:
        """Remove old journals, and the oldest beyond a number.

        The `KEPT_ALWAYS` newest stay, and journals of running rollouts.
        """
        oldest = RolloutId.of(now - KEPT_FOR, "0000", None)
        for number, rollout in enumerate(self.ids()):
            if number < KEPT_ALWAYS or (number < KEPT_AT_MOST and rollout >= oldest):
                continue
            JournalReader(self._path(rollout)).remove()
        self._forget_halves(oldest)

    def _forget_halves(self, oldest: str) -> None:
        """Remove files of processes that were killed while creating or removing a journal."""
        known = {*self.ids()}
        for name in list_names(self._directory):
            rollout = name.lstrip(".").partition(".")[0]
            if RolloutId.like(rollout) and rollout < oldest and rollout not in known:
                remove(self._directory / name)

    def begin(self, began: events.RolloutBegan, *, at: str) -> JournalWriter:
        """Create and lock the journal of a new rollout, with its first event."""
        journal = self.take(began.id)
        try:
            journal.begin(began, at=at)
        except StateError:
            journal.close()
            raise
        return journal
