"""Chooses the run that a rollback returns to, and puts the rollback in force.

    r1 -> r2 -> r3, all good: `rollback` from r3 goes to r2, a second one to r1, and never to r3.

- A rollback returns only to good, whole runs of tags of the same source.
- Without a target it chooses a release that was applied before the current one.
- If an assignment is taken back, it chooses the newest run that is older than the assignment.
"""

from collections.abc import Callable
from datetime import datetime

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import ReleasePath, RunId
from localpuppet.base.formats.times import show_time
from localpuppet.node.enc.input import LoadedInput
from localpuppet.node.releases.release_records import Ledger, Rollback
from localpuppet.node.runs.run_records import GoodRun, GoodRuns


class RollbackService:
    """Chooses the target of a rollback, and puts the rollback in force."""

    def __init__(self, good_runs: GoodRuns, ledger: Ledger) -> None:
        self._good_runs = good_runs
        self._ledger = ledger

    def go_back(
        self,
        loaded: LoadedInput,
        *,
        tag: str | None,
        user: str,
        now: datetime,
        ensure: Callable[[ReleasePath], object],
        until: str | None = None,
    ) -> tuple[Rollback, ReleasePath, str]:
        """Put a rollback in force; return it, the release that it leaves, and when its run ended.

        Args:
            loaded: The node's own input, which the rollback overrules.
            tag: The release to return to; `None` for the newest good one before the current one.
            ensure: Ensures that a release is on this node; see `ReleaseProvider`.
            until: Return to the newest good run up to this one, whatever its release; empty for a
                node without one. `None` for the rules above.

        Raises:
            LocalpuppetError: No such run exists, or its release is not on this node and cannot be
                staged.
        """
        before = self._ledger.rollback()
        in_force = before is not None and before.stands(loaded.sha256, loaded.serial)
        current = before.release if before is not None and in_force else loaded.input.app
        if until is not None:
            good = self._run_up_to(current, until)
        else:
            good = self._good_run(current, tag, rolled_back=in_force)
        ensure(good.release)
        rollback = Rollback(
            release=good.release,
            run=good.run,
            node_document=good.node_document,
            input_sha256=loaded.sha256,
            user=user,
            since=show_time(now),
            input_release=loaded.input.app,
            serial=loaded.serial,
        )
        self._ledger.roll_back(rollback)
        return rollback, current, good.finished_at

    def previous(self, current: ReleasePath) -> ReleasePath | None:
        """Return the release to which a rollback from `current` would go, or `None`."""
        good = self._good_runs.newest(self._before(current))
        return None if good is None else good.release

    def _before(self, current: ReleasePath) -> Callable[[RunId, ReleasePath], bool]:
        """Return a test for runs of a release that was applied before the current one."""
        order = self._ledger.order(current.source)
        # What was applied after the release that is left was left, too: it lies ahead.
        ahead = set(order[order.index(current) :]) if current in order else {current}
        return lambda _, app: app.source == current.source and app not in ahead

    def _good_run(self, current: ReleasePath, tag: str | None, *, rolled_back: bool) -> GoodRun:
        """Return the newest good run that a rollback may go to."""
        wanted = f"{current.source}/tags/{tag}"
        accept = self._before(current) if tag is None else lambda _, app: app == wanted
        good = self._good_runs.newest(accept)
        if good is not None:
            return good
        what = f"a release of {current.source!r} before {current}" if tag is None else wanted
        cure = "'localpuppet apply --allow-older' accepts any release"
        if rolled_back:
            cure = "'localpuppet rollback --end' returns to the input"
        raise InvalidInputError(
            f"there is no good run of {what} in the record",
            hint=f"see 'localpuppet history'; {cure}",
        )

    def _run_up_to(self, current: ReleasePath, until: str) -> GoodRun:
        """Return the newest good run of the same source that is not newer than `until`."""
        good = self._good_runs.newest(
            lambda run, app: run <= until and app.source == current.source
        )
        if good is not None:
            return good
        raise InvalidInputError(
            f"no good run of a release of {current.source!r} is in the record that is older than"
            f" the assignment of {current}, and was confirmed if it had to be",
            hint="see 'localpuppet history'",
        )
