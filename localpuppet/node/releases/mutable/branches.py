"""`NAME/branches/BRANCH`: a branch of a source as it is now, with the modules of its lock.

    control/branches/feature/x  ->  the commit of that branch, fetched at each stage

Owns: `branches/` in the state directory: which commit each branch was when it was last fetched.
Invariants: a branch is never taken for a release, nor used where tags or signatures are asked for;
what a run uses is one commit, whole, though the branch moves meanwhile.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localpuppet.base.errors import (
    InvalidInputError,
    LocalpuppetError,
    StateError,
    UnavailableError,
)
from localpuppet.base.formats.json_file import read_json
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.machine.files import make_private, remove, write_json
from localpuppet.node.releases.git.names import parse_digest, parse_object_id
from localpuppet.node.releases.layout.links import ModuleLinks
from localpuppet.node.releases.lock import CommitPin, Lock
from localpuppet.node.releases.lockfile import LOCK, MANIFEST, check_complete
from localpuppet.node.releases.manifest import Manifest
from localpuppet.node.releases.mutable.modules import LockedModules
from localpuppet.node.releases.release import Place, Release, assemble
from localpuppet.node.releases.source import Source, source_of
from localpuppet.node.releases.supply import Supply

if TYPE_CHECKING:
    from localpuppet.node.releases.git.repository import Repository

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedBranch:
    """What a branch was when it was last fetched.

    Attributes:
        app: Its name.
        commit: The commit.
        tree_sha256: Digest of its tree.
    """

    app: ReleasePath
    commit: str
    tree_sha256: str

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "StagedBranch":
        """Return the record.

        Raises:
            StateError: It is not one that this version wrote.
        """
        try:
            if raw["schema"] != SCHEMA:
                raise ValueError(f"schema {raw['schema']!r}")
            return cls(
                app=ReleasePath.parse(raw["app"], where="app"),
                commit=parse_object_id(raw["commit"], where="commit"),
                tree_sha256=parse_digest(raw["tree_sha256"], where="tree_sha256"),
            )
        except (KeyError, TypeError, ValueError, InvalidInputError) as error:
            raise StateError(f"is damaged: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "schema": SCHEMA,
            "app": str(self.app),
            "commit": self.commit,
            "tree_sha256": self.tree_sha256,
        }


class BranchRecords:
    """What branches of this node were when they were last fetched.

    Args:
        state: The state directory.
    """

    def __init__(self, state: Path) -> None:
        self._directory = state / "branches"

    def of(self, app: ReleasePath) -> StagedBranch | None:
        """Return the record of a branch; `None` when it was never fetched here.

        Raises:
            StateError: It is damaged.
        """
        try:
            return StagedBranch.from_dict(read_json(self._file(app)))
        except FileNotFoundError:
            return None

    def write(self, staged: StagedBranch) -> None:
        """Write a record, durably."""
        make_private(self._directory)
        write_json(self._file(staged.app), staged.to_dict())

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
        return self._directory / f"{app.replace('/', '%')}.json"


class BranchStaging:
    """Brings branches.

    Args:
        modules: The directory of all modules: where branches are in messages.
        supply: Where code comes from, and where it goes.
        locked: Brings what locks pin.
        repository: Lends git under a title that says what for.
    """

    def __init__(
        self,
        *,
        modules: Path,
        supply: Supply,
        locked: LockedModules,
        repository: "Callable[[str], AbstractContextManager[Repository]]",
    ) -> None:
        self._modules = modules
        self._supply = supply
        self._store = supply.store
        self._files = supply.files
        self._locked = locked
        self._repository = repository
        self._records = BranchRecords(supply.store.directory)

    def stage(self, app: ReleasePath) -> tuple[StagedBranch, Lock]:
        """Fetch a branch as it is now, and the modules of its lock.

        Raises:
            InvalidInputError: The source is unknown, asks for signatures or has no such branch;
                manifest or lock is refused.
            IntegrityError: What the lock pins is not what it was.
            UnavailableError: A repository or the forge cannot be had.
            BusyError: Another process changes the store.
        """
        source = self._source(app)
        held = self._store.exclusively()
        try:
            with self._repository(f"staging {app}") as repository:
                commit = self._head(app, source, repository)
                known = self._records.of(app)
                tree = known.tree_sha256 if known and known.commit == commit else ""
                pin = CommitPin(url=source.url, branch=app.branch, commit=commit, tree_sha256=tree)
                fetcher = self._supply.modules(repository)
                whole = fetcher.bring({str(app): pin}, file=str(app))[str(app)]
        finally:
            held.release()
        staged = StagedBranch(app=app, commit=commit, tree_sha256=whole.tree_sha256)
        directory = self._store.path(staged.tree_sha256)
        _, lock = self._read(app, directory)
        title = f"staging modules of {app}"
        self._locked.bring(lock, lock.trees, title=title, file=directory / LOCK)
        self._records.write(staged)
        return staged, lock

    def stage_or_stay(self, app: ReleasePath, note: Callable[[str], None]) -> None:
        """Fetch a branch; where it cannot be had now, leave it as it was fetched last, and say so.

        Raises:
            LocalpuppetError: It is refused, or cannot be had and was never fetched.
        """
        try:
            self.stage(app)
        except UnavailableError as error:
            known = self._records.of(app)
            if known is None:
                raise
            note(f"warning: {app} stays at {known.commit[:12]}: {error}")

    def release(self, app: ReleasePath) -> Release:
        """Return a branch as it was fetched last.

        Raises:
            InvalidInputError: It was never fetched here, or is refused.
            StateError: Its record is damaged.
        """
        staged = self._records.of(app)
        if staged is None or not self._store.has(staged.tree_sha256):
            raise InvalidInputError(
                f"{app} is not on this node", where="app", hint="'localpuppet stage' fetches it"
            )
        directory = self._store.path(staged.tree_sha256)
        manifest, lock = self._read(app, directory)
        place = Place(
            directory=directory,
            name=self._modules / app,
            inside=[directory],
            single=ModuleLinks(self._store.directory).path(lock.trees) if lock.modules else None,
            collections=[
                (self._modules / entry, self._store.path(lock.sources[entry].tree_sha256))
                for entry in manifest.modulepath
            ],
        )
        try:
            return assemble(app, manifest, place, files=self._files)
        except LocalpuppetError as error:
            raise error.at(str(directory / MANIFEST)) from error

    def _read(self, app: ReleasePath, directory: Path) -> tuple[Manifest, Lock]:
        manifest = self._files.manifest(directory, app)
        lock = self._files.pinned(directory, manifest)
        check_complete(manifest, lock, where=str(app))
        return manifest, lock

    def _source(self, app: ReleasePath) -> Source:
        source = source_of(app, self._supply.sources)
        if source.signers is not None:
            raise InvalidInputError(
                "a branch has no signature, and its source requires signed tags",
                where=app,
                hint="name a tag of it",
            )
        return source

    def _head(self, app: ReleasePath, source: Source, repository: "Repository") -> str:
        refs = repository.refs([source.url])[source.url]
        commit = refs.get(f"refs/heads/{app.branch}")
        if commit is None:
            raise InvalidInputError(
                f"the repository has no branch {app.branch!r}",
                where=app,
                hint=f"git ls-remote --heads {source.url}",
            )
        return parse_object_id(commit, where=app)
