"""Stages `NAME/branches/BRANCH`: the current commit of a source's branch, with its modules.

    control/branches/feature/x  ->  the commit of that branch, fetched at each stage

- `branches/` in the state directory records the commit of each branch at its last fetch.
- A branch never counts as a release, and is not used where tags or signatures are required.
- A run uses one complete commit, even if the branch moves meanwhile.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, UnavailableError, errors_at
from localpuppet.base.formats.json_file import read_json, read_record
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.formats.schema_number import check_schema, damage_errors
from localpuppet.base.machine.files import make_private, remove, write_json
from localpuppet.node.releases.git.names import parse_digest, parse_object_id
from localpuppet.node.releases.layout.links import ModuleLinks
from localpuppet.node.releases.lock import CommitPin, Lock
from localpuppet.node.releases.lockfile import LOCK, MANIFEST, check_complete
from localpuppet.node.releases.manifest import Manifest
from localpuppet.node.releases.mutable.modules import LockedModules
from localpuppet.node.releases.release import Release, ReleaseLocation, assemble
from localpuppet.node.releases.source import ReleaseSource, source_of
from localpuppet.node.releases.staged_records import file_name
from localpuppet.node.releases.supply import Supply

if TYPE_CHECKING:
    from localpuppet.node.releases.git.repository import Repository

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedBranch:
    """A branch at its last fetch.

    Attributes:
        release: Its name.
        commit: The commit.
        tree_sha256: Digest of its tree.
    """

    release: ReleasePath
    commit: str
    tree_sha256: str

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "StagedBranch":
        """Return the record."""
        with damage_errors():
            check_schema(raw, SCHEMA)
            return cls(
                release=ReleasePath.parse(raw["release"], where="release"),
                commit=parse_object_id(raw["commit"], where="commit"),
                tree_sha256=parse_digest(raw["tree_sha256"], where="tree_sha256"),
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"schema": SCHEMA, **asdict(self)}


class BranchRecords:
    """The branches of this node at their last fetch.

    Args:
        state: The state directory.
    """

    def __init__(self, state: Path) -> None:
        self._directory = state / "branches"

    def of(self, app: ReleasePath) -> StagedBranch | None:
        """Return the record of a branch; `None` if it was never fetched."""
        return read_record(self._file(app), StagedBranch.from_dict)

    def write(self, staged: StagedBranch) -> None:
        """Write a record durably."""
        make_private(self._directory)
        write_json(self._file(staged.release), staged.to_dict())

    def fetched(self) -> dict[StagedBranch, float]:
        """Return every record, and when it was written, in seconds since 1970.

        Raises:
            StateError: A record is damaged.
        """
        return {
            StagedBranch.from_dict(read_json(path)): path.stat().st_mtime
            for path in sorted(self._directory.glob("*.json"))
        }

    def remove(self, app: ReleasePath) -> None:
        """Remove a record."""
        remove(self._file(app))

    def _file(self, app: ReleasePath) -> Path:
        return self._directory / file_name(app)


@dataclass(slots=True, kw_only=True, eq=False)
class BranchStaging:
    """Stages branches.

    Attributes:
        modules: The directory of all modules, for paths in messages.
        supply: Provides code.
        locked: Brings the trees that locks pin.
        repository: Provides git, under a title for progress.
    """

    modules: Path
    supply: Supply
    locked: LockedModules
    repository: "Callable[[str], AbstractContextManager[Repository]]"
    _records: BranchRecords = field(init=False)

    def __post_init__(self) -> None:
        self._records = BranchRecords(self.supply.store.directory)

    def stage(self, app: ReleasePath) -> tuple[StagedBranch, Lock]:
        """Fetch the current commit of a branch, and the modules of its lock.

        Raises:
            InvalidInputError: The source is unknown, requires signatures or lacks the branch; or
                manifest or lock is invalid.
            IntegrityError: A tree differs from its pin.
            UnavailableError: A repository or the forge is unreachable.
            BusyError: Another process changes the store.
        """
        source = self._source(app)
        changing = self.supply.store.locks.take_for_changes()
        with changing, self.repository(f"staging {app}") as repository:
            commit = self._head(app, source, repository)
            known = self._records.of(app)
            tree = known.tree_sha256 if known and known.commit == commit else ""
            pin = CommitPin(url=source.url, branch=app.branch, commit=commit, tree_sha256=tree)
            fetcher = self.supply.modules(repository)
            whole = fetcher.bring({str(app): pin}, file=str(app))[str(app)]
        staged = StagedBranch(release=app, commit=commit, tree_sha256=whole.tree_sha256)
        directory = self.supply.store.path(staged.tree_sha256)
        _, lock = self._read(app, directory)
        title = f"staging modules of {app}"
        self.locked.bring(lock, lock.trees, title=title, file=directory / LOCK)
        self._records.write(staged)
        return staged, lock

    def stage_or_stay(self, app: ReleasePath, note: Callable[[str], None]) -> None:
        """Fetch a branch; if it is unreachable, keep the last fetched commit and note that.

        Raises:
            LocalpuppetError: The branch is invalid, or unreachable and never fetched.
        """
        try:
            self.stage(app)
        except UnavailableError as error:
            known = self._records.of(app)
            if known is None:
                raise
            note(f"warning: {app} stays at {known.commit[:12]}: {error}")

    def release(self, app: ReleasePath) -> Release:
        """Return the last fetched commit of a branch as a release.

        Raises:
            InvalidInputError: The branch was never fetched, or is invalid.
            StateError: Its record is damaged.
        """
        staged, store = self._records.of(app), self.supply.store
        if staged is None or not store.has(staged.tree_sha256):
            raise InvalidInputError(
                f"{app} is not on this node", where="app", hint="'localpuppet stage' fetches it"
            )
        directory = store.path(staged.tree_sha256)
        manifest, lock = self._read(app, directory)
        place = ReleaseLocation(
            directory=directory,
            name=self.modules / app,
            inside=[directory],
            single=ModuleLinks(store.directory).path(lock.trees) if lock.modules else None,
            collections=[
                (self.modules / entry, store.path(lock.sources[entry].tree_sha256))
                for entry in manifest.modulepath
            ],
        )
        with errors_at(str(directory / MANIFEST), LocalpuppetError):
            return assemble(app, manifest, place, files=self.supply.files)

    def _read(self, app: ReleasePath, directory: Path) -> tuple[Manifest, Lock]:
        manifest = self.supply.files.manifest(directory, app)
        lock = self.supply.files.pinned(directory, manifest)
        check_complete(manifest, lock, where=str(app))
        return manifest, lock

    def _source(self, app: ReleasePath) -> ReleaseSource:
        source = source_of(app, self.supply.sources)
        if source.signers is not None:
            raise InvalidInputError(
                "a branch has no signature, and its source requires signed tags",
                where=app,
                hint="name a tag of it",
            )
        return source

    def _head(self, app: ReleasePath, source: ReleaseSource, repository: "Repository") -> str:
        refs = repository.refs([source.url])[source.url]
        commit = refs.get(f"refs/heads/{app.branch}")
        if commit is None:
            raise InvalidInputError(
                f"the repository has no branch {app.branch!r}",
                where=app,
                hint=f"git ls-remote --heads {source.url}",
            )
        return parse_object_id(commit, where=app)
