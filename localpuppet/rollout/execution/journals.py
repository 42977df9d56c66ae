"""The rollout journals of this machine, and their retention."""

from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from datetime import datetime, timedelta
from pathlib import Path

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.names import RolloutId, did_you_mean
from localpuppet.base.machine.files import list_names, remove
from localpuppet.rollout.execution.events import RolloutBegan
from localpuppet.rollout.execution.journal import JournalReader, JournalWriter
from localpuppet.rollout.execution.state import RolloutState

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
        """Return the journal of a rollout; of the newest for `None`.

        Raises:
            InvalidInputError: This machine has no such journal.
        """
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
        return self.place(wanted)

    def place(self, rollout: RolloutId) -> JournalReader:
        """Return the journal of a rollout, whether it exists or not."""
        return JournalReader(self._path(rollout))

    def take(self, rollout: RolloutId) -> JournalWriter:
        """Return the locked journal of a rollout, whether it exists or not.

        Raises:
            BusyError: Another process controls the rollout.
        """
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

        Args:
            now: UTC.
        """
        oldest = RolloutId.of(now - KEPT_FOR, "0000", None)
        for number, rollout in enumerate(self.ids()):
            if number < KEPT_ALWAYS or (number < KEPT_AT_MOST and rollout >= oldest):
                continue
            self.place(rollout).remove()
        self._forget_halves(oldest)

    def _forget_halves(self, oldest: str) -> None:
        """Remove files of processes that were killed while creating or removing a journal."""
        known = {*self.ids()}
        for name in list_names(self._directory):
            rollout = name.lstrip(".").partition(".")[0]
            if RolloutId.like(rollout) and rollout < oldest and rollout not in known:
                remove(self._directory / name)

    def begin(self, began: RolloutBegan, *, at: str) -> JournalWriter:
        """Create and lock the journal of a new rollout, with its first event."""
        journal = self.take(began.id)
        try:
            journal.begin(began, at=at)
        except StateError:
            journal.close()
            raise
        return journal
