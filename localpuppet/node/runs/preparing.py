"""Prepares a run for `localpuppet apply`, the agent or a rollout; puts assignments in force.

    read the input -> rolled back? older? -> provide the release -> compute the node document
    -> ask for instance data

Refusals come before anything is locked or recorded. Each step is done once: the release is resolved
once, the node document computed once.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localpuppet.base.errors import InvalidInputError, LocalpuppetError
from localpuppet.base.formats.names import ReleasePath, RunId
from localpuppet.base.formats.times import show_time
from localpuppet.base.machine.flock import Flock
from localpuppet.base.machine.ports import Clock
from localpuppet.base.value import Value
from localpuppet.node.enc.assignment import AssignedRelease, Assignment, check_newer, identity
from localpuppet.node.enc.document import EncData, Input, NodeDocument
from localpuppet.node.enc.input import InputReader, LoadedInput, node_document
from localpuppet.node.releases.manifest import LOCK
from localpuppet.node.releases.release import Release
from localpuppet.node.releases.release_records import AppliedElsewhere, Ledger, Rollback
from localpuppet.node.runs.interface_reader import InterfaceReader
from localpuppet.node.runs.options import RunOptions, RunRequest
from localpuppet.node.runs.rollback_service import RollbackService
from localpuppet.node.runs.run_records import GoodRuns, Records

if TYPE_CHECKING:
    from localpuppet.node.releases.packages.package_staging import PackageStaging
    from localpuppet.node.releases.packages.tools import SystemPackageTools
    from localpuppet.node.releases.staging import Approve

# What an input must name, and what does not count here.
_NO_RELEASE = ReleasePath("a-work-tree/trunk")


class PreparedRun(Value):
    """A run that is ready for the supervisor.

    Attributes:
        ends_rollback: Whether an operator's rollback ends when this run begins, because the input
            has changed. A run that is refused earlier leaves the rollback in force.
        document: The node document; `None` if the site's ENC command adds to it: the supervisor
            calls that command when the record is open.
        store_lock: Keeps `gc` away from the release until the record is open.
    """

    loaded: LoadedInput
    release: Release
    options: RunOptions
    document: NodeDocument | None
    instance_facts: Mapping[str, str] = field(default_factory=dict)
    ends_rollback: bool = False
    store_lock: Flock | None = None

    def release_store(self) -> None:
        """Let `gc` continue: the record names what the run needs, or no run follows."""
        if self.store_lock is not None:
            self.store_lock.release()

    def request(
        self,
        run: RunId,
        now: datetime,
        *,
        command: Sequence[str],
        document: Mapping[str, Any],
        answer: EncData | None = None,
    ) -> RunRequest:
        loaded, release, options = self.loaded, self.release, self.options
        data = loaded.input.data if answer is None else loaded.input.data.over(answer)
        return RunRequest(
            id=run,
            requested_at=show_time(now),
            user=options.user,
            cause=options.cause,
            release=release.name,
            modulepath=tuple(map(str, release.whole_modulepath)),
            environment=str(document.get("environment", "")),
            input=loaded.name,
            input_sha256=loaded.sha256,
            layers=loaded.input.layers,
            noop=options.noop,
            timeout=options.timeout,
            command=tuple(command),
            node_document=document,
            causes=options.causes,
            work_tree=release.work_tree,
            instance_facts=tuple(sorted(self.instance_facts)),
            assignment={} if loaded.assignment is None else loaded.assignment.to_public(),
            # After a rollback the whole document is recorded, and the input has no part in it.
            data=options.document.to_dict() if options.document else data.to_dict(),
        )


@dataclass(slots=True, eq=False, kw_only=True)
class ReleaseProvider:
    """Provides releases.

    `offered` says whether a source, a package or a pack has a release. `mutable` brings the modules
    of mutable code, unless the site forbids it.
    """

    offered: Callable[[ReleasePath], bool]
    resolve: Callable[[ReleasePath], Release]
    staging: "Callable[[str, Approve], AbstractContextManager[PackageStaging]]"
    tools: "Callable[[], SystemPackageTools]"
    reader: "Callable[[], InterfaceReader]"
    mutable: Callable[[ReleasePath], None] | None

    def ensure_present(self, path: ReleasePath, note: Callable[[str], None]) -> None:
        """Stage a release again if this node had it and lost it.

        Args:
            note: Called before a release is staged, with a line for the user.
        """
        try:
            self.resolve(path)
        except InvalidInputError:
            note(f"{path} is incomplete on this node: staging it")
            try:
                self.provide(path)
            except LocalpuppetError as error:
                raise type(error)(
                    f"{path} is incomplete on this node and cannot be staged: {error}",
                    hint=f"when its source can be reached, run 'localpuppet stage {path}'",
                ) from error

    def provide(self, path: ReleasePath, *, package: Path | None = None) -> Release:
        """Return a release, after staging it if any source offers it.

        Args:
            package: A package to install first, and to stage the release from.
        """
        changes = not (path.is_tag or path.is_assigned)
        if package is None and changes and self.mutable is not None:
            self.mutable(path)
        # Where staging could not find it, resolving says best what is wrong.
        if package is None and not (path.is_tag and self.offered(path)):
            return self.resolve(path)

        reader = self.reader()
        if package is not None:
            self.tools().install(package)
        with self.staging(f"staging {path}", reader.read_composed) as staging:
            if package is not None:
                staging.stage_installed(path)
            else:
                staging.stage(path)
        release = replace(self.resolve(path), repaired=staging.staging.repaired)
        if reader.kept(release) is None:  # a release that was here already
            reader.read_staged(release)
        return release


class RunPreparation(Value):
    """Prepares runs of a node: of the release that an input names, or of a work tree.

    Attributes:
        applied_elsewhere: Returns the release that this node last published on the bus as applied;
            used if the ledger does not know the source.
        lock_store: The lock is released when the run is on record.
    """

    own: Path
    inputs: InputReader
    instance_facts: Callable[[], Mapping[str, str]]
    asks_enc: bool
    ledger: Ledger
    releases: ReleaseProvider
    work_tree: Callable[[Path], Release]
    immutable_only: bool
    note: Callable[[str], None]
    applied_elsewhere: Callable[[ReleasePath], AppliedElsewhere | None]
    lock_store: Callable[[], Flock]

    def prepare(
        self,
        options: RunOptions,
        *,
        source: str | None = None,
        package: Path | None = None,
        allow_older: bool = False,
        set_release: Callable[[ReleasePath], None] = lambda _: None,
    ) -> PreparedRun:
        """Read the input, provide its release, and refuse the run if it cannot succeed.

        Until the caller calls `release_store`, `gc` removes no release.

        Args:
            source: The input; the node's own for `None`.
            package: A package to install first, and to take the release from.
            allow_older: Whether the input may name an older release.

        Raises:
            LocalpuppetError: The input is invalid, or the release cannot be provided. Nothing is
                locked or recorded then.
        """
        store_lock = self.lock_store()
        prepared = None
        try:
            loaded = self.inputs.read(str(self.own) if source is None else source)
            set_release(loaded.input.app)
            rollback = self.ledger.rollback() if source is None else None
            in_force = rollback is not None and rollback.stands(loaded.sha256, loaded.serial)
            stands = in_force and not allow_older
            try:
                if rollback is not None and stands:
                    loaded, options = self._overruled(loaded, options, rollback)
                    set_release(loaded.input.app)
                # After a rollback the next input decides, even if its release is older.
                assigned_older = loaded.assignment is not None and loaded.assignment.allow_older
                may_be_older = allow_older or rollback is not None or assigned_older
                release = self._release(loaded.input.app, package, may_be_older=may_be_older)
            except LocalpuppetError as error:
                raise loaded.placed(error) from error
            if release.repaired:
                self.note(f"warning: {release.name} was repaired: {release.repaired}")
            prepared = PreparedRun(
                loaded=loaded,
                release=release,
                options=options,
                document=options.document or self._document(loaded, release),
                instance_facts=self.instance_facts(),
                ends_rollback=rollback is not None and not stands and not options.noop,
                store_lock=store_lock,
            )
            return prepared
        finally:
            if prepared is None:
                store_lock.release()

    def _release(self, app: ReleasePath, package: Path | None, *, may_be_older: bool) -> Release:
        """Provide the release; reject an older one unless it may be older."""
        if may_be_older:
            return self.releases.provide(app, package=package)
        before = self.applied_elsewhere(app) if self.ledger.begins(app) else None
        self.ledger.check_forward(app, before=before)
        release = self.releases.provide(app, package=package)
        # A release that came only now brought the time of its tag with it.
        self.ledger.check_forward(app, before=before)
        return release

    def _overruled(
        self, loaded: LoadedInput, options: RunOptions, rollback: Rollback
    ) -> tuple[LoadedInput, RunOptions]:
        """Replace the input's release by the one that an operator rolled back to.

        A rollback ends when the node's own input changes.
        """
        self.note(
            f"rolled back to {rollback.release} by {rollback.user} (run {rollback.run});"
            f" a {'new assignment or a ' if rollback.serial else ''}changed input ends that"
        )
        document = NodeDocument.from_dict(rollback.node_document)
        rolled_back = replace(
            loaded,
            name=f"rollback to run {rollback.run}",
            input=replace(loaded.input, app=rollback.release, layers=()),
            assignment=None,
        )
        return rolled_back, replace(options, document=document)

    def _document(self, loaded: LoadedInput, release: Release) -> NodeDocument | None:
        """Return the node document; `None` if the supervisor asks the site's ENC for it."""
        return None if self.asks_enc else node_document(loaded, release.enc, answer=None)

    def prepare_work_tree(
        self,
        options: RunOptions,
        *,
        directory: Path,
        source: str | None,
        set_release: Callable[[str], None],
    ) -> PreparedRun:
        """Read the input, provide the modules, and refuse the run if it cannot succeed.

        Args:
            source: The input; the node's own, if it has one, for `None`.
            set_release: Takes the name of the work tree, as soon as it is known.
        """
        if self.immutable_only:
            if not options.noop:
                raise InvalidInputError(
                    "a work tree can change, and 'immutable_only' is set",
                    where=str(directory),
                    hint="--noop shows what it would do",
                )
            self.note("warning: compiling runs functions and facts of this work tree as this user")
        loaded = self.read_optional(source)
        release = self.work_tree(directory)
        set_release(release.name)
        if release.has_sealed_values and not options.noop:
            raise InvalidInputError(
                "has sealed values, which a node opens in releases only",
                where=str(directory),
                hint="--noop shows what it would do, with placeholders",
            )
        return PreparedRun(
            loaded=loaded,
            release=release,
            options=options,
            document=self._document(loaded, release),
            instance_facts=self.instance_facts(),
        )

    def read_optional(self, source: str | None) -> LoadedInput:
        """Return the input of a work tree; the node's own, for `None`, may be missing."""
        if source is None and not self.own.exists():
            self.note(f"there is no {self.own}: no class and no parameter is given")
            nothing = Input(app=_NO_RELEASE, layers=(), data=EncData(classes={}, parameters={}))
            return LoadedInput(name="", data=b"", input=nothing)
        return self.inputs.read(str(self.own) if source is None else source)


class AssignmentService(Value):
    """Stages, applies and takes back assignments of this node.

    Attributes:
        confirm: Seconds within which an assignment must be confirmed; 0 for no confirmation.
        open_groups: Opens the groups of sealed values that name this node; raises an error if one
            does not open.
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
    lock_store: Callable[[], Flock]
    clock: Clock
    confirm: float
    confirmed: Callable[[Assignment], bool]
    open_groups: Callable[[Release], object]
    note: Callable[[str], None]

    def stage(self, wanted: Assignment) -> bool:
        """Provide a release on the node; return whether its assignment would be new.

        Raises:
            LocalpuppetError: The node rejects the assignment: its input names the release itself, a
                newer assignment is in force, the release cannot be provided, is not locked, is
                older than what runs or has sealed values for this node that it cannot open, or the
                values do not fit it. The assignment in force stays.
        """
        with self.lock_store():
            return self._stage(wanted)

    def take(self, wanted: Assignment) -> None:
        """Put an assignment in force; the next run takes it.

        Raises:
            LocalpuppetError: See `stage`; or another assignment was put in force meanwhile.
        """
        with self.lock_store():
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
        with self.lock_store():
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
        self.open_groups(release)
        self._check_values(loaded.given(wanted), wanted, release)
        return new

    def _read(self, wanted: Assignment) -> LoadedInput:
        """Return the node's own input if it takes an assignment of this source."""
        loaded = self.inputs.read_unassigned(str(self.own))
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
            raise InvalidInputError(error.what, where=error.where, hint=hint) from error

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
