"""Going back to an earlier release, and what is said of it while it lasts.

    r1 -> r2 -> r3, all good: `rollback` from r3 goes to r2, a second one to r1, and never to r3.

Owns: which run a rollback goes back to. Invariants: only good, whole runs of the same source;
without an aim only releases that were applied before the one that is left, or, where an assignment
is taken back, the newest of those that are older than the assignment. Refuses to know: how code is
staged.
"""

from collections.abc import Callable
from datetime import datetime

from localpuppet.enc.input import LoadedInput
from localpuppet.errors import InvalidInputError
from localpuppet.formats.json_file import read_json
from localpuppet.formats.names import ReleasePath
from localpuppet.formats.times import show_time
from localpuppet.releases.ledger import Ledger, Rollback
from localpuppet.runs.records import Records, RunDirectory
from localpuppet.runs.run import Status


class GoingBack:
    """Finds where a rollback goes, and puts it in force.

    Args:
        records: The runs of this node.
        ledger: What was applied on it.
    """

    def __init__(self, records: Records, ledger: Ledger) -> None:
        self._records = records
        self._ledger = ledger

    def go_back(
        self,
        loaded: LoadedInput,
        *,
        tag: str | None,
        user: str,
        now: datetime,
        resolve: Callable[[ReleasePath], object],
        until: str | None = None,
    ) -> tuple[Rollback, ReleasePath]:
        """Put a rollback in force; return it, and the release that is left.

        Args:
            loaded: The node's own input, which is overruled.
            tag: Which release; the newest good one before the one that is left for `None`.
            user: Who decides.
            now: UTC.
            resolve: Refuses a release that is not whole on this node.
            until: Go back to the newest good run up to this one, whatever its release; empty for a
                node that had none. `None` for the rules above.

        Raises:
            InvalidInputError: There is no such run, or its release is not here any more.
            StateError: The disk refused.
        """
        before = self._ledger.rollback()
        in_force = before is not None and before.stands(loaded.sha256, loaded.serial)
        current = before.app if before is not None and in_force else loaded.input.app
        status = self._good_run(current, tag) if until is None else self._run_up_to(current, until)
        app = ReleasePath.parse(status.app, where="app")
        resolve(app)
        request = read_json(RunDirectory(self._records.directory / status.id).request)
        rollback = Rollback(
            app=app,
            run=status.id,
            node_document=request["node_document"],
            input_sha256=loaded.sha256,
            user=user,
            since=show_time(now),
            wanted=loaded.input.app,
            serial=loaded.serial,
        )
        self._ledger.roll_back(rollback)
        return rollback, current

    def previous(self, current: ReleasePath) -> ReleasePath | None:
        """Return the release to which a rollback from `current` would go; `None` for none."""
        try:
            return ReleasePath(self._good_run(current, None).app)
        except InvalidInputError:
            return None

    def _good_run(self, current: ReleasePath, tag: str | None) -> Status:
        """Return the newest good, whole run that a rollback may go to.

        Raises:
            InvalidInputError: There is no such run.
        """
        wanted = None if tag is None else f"{current.source}/tags/{tag}"
        order = self._ledger.order(current.source)
        # What was applied after the release that is left was left, too: it lies ahead.
        ahead = set(order[order.index(current) :]) if current in order else {current}
        for status in self._records.history():
            if not status.good:
                continue
            path = ReleasePath(status.app)
            if path == wanted or (
                wanted is None
                and path.source == current.source
                and path not in ahead
                and not path.is_branch
            ):
                return status
        what = wanted or f"a release of {current.source!r} before {current}"
        raise InvalidInputError(
            f"there is no good run of {what} in the record",
            hint="see 'localpuppet history'; 'apply --allow-rollback' takes any release",
        )

    def _run_up_to(self, current: ReleasePath, until: str) -> Status:
        """Return the newest good, whole run up to one of a release of the same source.

        Raises:
            InvalidInputError: There is no such run.
        """
        for status in self._records.history():
            path = ReleasePath(status.app)
            if status.good and status.id <= until and path.is_tag and path.source == current.source:
                return status
        raise InvalidInputError(
            f"no good run of a release of {current.source!r} is in the record that is older than"
            f" the assignment of {current}, and was confirmed if it had to be",
            hint="see 'localpuppet history'",
        )
