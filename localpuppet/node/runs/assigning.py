"""Stages, applies and takes back the release that a signed request assigns to this node.

    stage:  does the input take one? newer? older? -> provide the release -> do the values fit?
    apply:  the same, and then the assignment is in force
    back:   the last good run before the assignment, without unconfirmed ones, is in force

- An assignment is in force only when its release is on the node, locked, and its values fit the
  interface that Puppet's own parser read.
- Repeating a request has the same result.
- A rollback never returns to an assignment that required a confirmation and did not get one.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from localpuppet.base.errors import InvalidInputError, LocalpuppetError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.formats.times import show_time
from localpuppet.base.machine.flock import Flock
from localpuppet.base.machine.ports import Clock
from localpuppet.node.enc.assigned import AssignedRelease
from localpuppet.node.enc.assignment import Assignment, check_newer, identity
from localpuppet.node.enc.classify import node_document
from localpuppet.node.enc.document import EncData
from localpuppet.node.enc.input import InputReader, LoadedInput
from localpuppet.node.releases.ledger import Ledger
from localpuppet.node.releases.lockfile import LOCK
from localpuppet.node.releases.provider import ReleaseProvider
from localpuppet.node.releases.reading import InterfaceReader
from localpuppet.node.releases.release import Release
from localpuppet.node.runs.good_runs import GoodRuns
from localpuppet.node.runs.records import Records
from localpuppet.node.runs.rollback_service import RollbackService


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentService:
    """Stages, applies and takes back assignments of this node.

    Attributes:
        own: The node's own input.
        inputs: Reads it.
        assigned: The assignment in force.
        ledger: What was applied, and an operator's rollback.
        records: The runs of this node.
        good_runs: The good runs that a rollback can return to.
        releases: Provides releases.
        reader: Reads the interface of a release with Puppet's parser.
        answer: Returns the answer of the site's ENC command, if the site has one.
        keep: Keeps `gc` away from releases.
        clock: The node's clock.
        confirm: Seconds within which an assignment must be confirmed; 0 for no confirmation.
        confirmed: Returns whether an assignment was confirmed.
        note: Takes messages for people.
    """

    own: Path
    inputs: InputReader
    assigned: AssignedRelease
    ledger: Ledger
    records: Records
    good_runs: GoodRuns
    releases: ReleaseProvider
    reader: InterfaceReader
    answer: Callable[[], EncData | None]
    keep: Callable[[], Flock]
    clock: Clock
    confirm: float
    confirmed: Callable[[Assignment], bool]
    note: Callable[[str], None]

    def stage(self, wanted: Assignment) -> bool:
        """Provide a release on the node; return whether its assignment would be new.

        Raises:
            LocalpuppetError: The node rejects the assignment: its input names the release itself, a
                newer assignment is in force, the release cannot be provided, is not locked or is
                older than what runs, or the values do not fit it. The assignment in force stays.
        """
        with self.keep():
            return self._stage(wanted)

    def take(self, wanted: Assignment) -> None:
        """Put an assignment in force; the next run takes it.

        Raises:
            LocalpuppetError: See `stage`; or another assignment was put in force meanwhile.
        """
        with self.keep():
            if self._stage(wanted):
                newest = next(iter(self.records.ids()), "")
                taken = replace(
                    wanted,
                    at=show_time(self.clock.now()),
                    after=newest,
                    back_to=self._back_to(newest),
                    confirm=self.confirm,
                )
                self.assigned.keep(taken)

    def go_back(self, left: Assignment, *, by: str = "") -> None:
        """Replace an assignment by the last good run before it, with that run's node document.

        If another assignment or none is in force, nothing changes.

        Args:
            left: The assignment to leave.
            by: The user who decides; the default is the user who assigned the release.

        Raises:
            InvalidInputError: There is no such run.
        """
        held = self.assigned.read()
        if held is None or identity(held) != identity(left):
            return
        rollback = self.ledger.rollback()
        loaded = self.inputs.read(str(self.own))
        if loaded.assignment is None:  # the node's own input names a release by now
            return
        stands = rollback is not None and rollback.stands(loaded.sha256, loaded.serial)
        if rollback is not None and stands and rollback.serial == held.serial:
            return
        with self.keep():
            RollbackService(self.good_runs, self.ledger).go_back(
                loaded,
                tag=None,
                user=by or left.by,
                now=self.clock.now(),
                ensure=lambda app: self.releases.ensure_present(app, self.note),
                until=held.back_to,
            )

    def _back_to(self, newest: str) -> str:
        """Return the newest run to which a node may return from an assignment that arrives now."""
        before = self.assigned.read()
        if before is None or not before.confirm or self.confirmed(before):
            return newest
        return before.back_to

    def _stage(self, wanted: Assignment) -> bool:
        loaded = self._read(wanted)
        new = check_newer(wanted, self.assigned.read())
        release = self._provide(wanted)
        self._check_values(loaded.given(wanted), wanted, release)
        return new

    def _read(self, wanted: Assignment) -> LoadedInput:
        """Return the node's own input if it takes an assignment of this source."""
        loaded = self.inputs.read_itself(str(self.own))
        app, source = loaded.input.app, wanted.release.source
        if not app.is_assigned or app.source != source:
            raise InvalidInputError(
                f"is {app}: this node does not take releases of {source} by request",
                where=f"{loaded.name}: app",
                hint=f"write app: {source}/assigned",
            )
        return loaded

    def _provide(self, wanted: Assignment) -> Release:
        app = wanted.release
        self._check_forward(wanted)
        release = self.releases.provide(ReleasePath(app))
        # A release that came only now brought the time of its tag with it.
        self._check_forward(wanted)
        if not (release.directory / LOCK).is_file():
            raise InvalidInputError(
                f"{app} has no {LOCK}: localpuppet deploys locked releases only",
                where="release",
                hint="'localpuppet release lock' makes one",
            )
        return release

    def _check_forward(self, wanted: Assignment) -> None:
        if wanted.allow_older:
            return
        try:
            self.ledger.check_forward(wanted.release)
        except InvalidInputError as error:
            hint = "pass --allow-older; the policy of the node must allow you the action 'older'"
            raise InvalidInputError(error.what, where="release", hint=hint) from error

    def _check_values(self, given: LoadedInput, wanted: Assignment, release: Release) -> None:
        document = node_document(given, release.enc, answer=self.answer())
        where = f"{wanted.release} on this node"
        try:
            if problem := self.reader.check_now(release, document, where=where):
                raise InvalidInputError(problem, where=where)
        except LocalpuppetError as error:
            raise error if error.where else error.at(where) from error
        if not wanted.classes:
            return
        interface = self.reader.interface_of(release)
        for name, body in wanted.classes.items():
            class_interface = interface.classes.get(name)
            for key in body:
                parameter = class_interface.parameters.get(key) if class_interface else None
                if parameter is not None and "Sensitive" in (parameter.type or ""):
                    raise InvalidInputError(
                        "is Sensitive, and the bus would carry its value",
                        where=f"classes.{name}.{key}",
                        hint="put secrets in Hiera (eyaml) or in the node's own input",
                    )
