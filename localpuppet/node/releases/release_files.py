"""Reads `manifest.yaml` and `manifest.lock` by the site's settings, from any place.

    of a working copy: manifest, lock;  of a release that is being staged: locked

`releases.manifest` and `releases.lockfile` have the formats.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, errors_at
from localpuppet.base.formats.documents import Documents
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.machine.files import is_file, read_user_file
from localpuppet.base.machine.ownership import ForeignFileError, refuse_foreign_directory
from localpuppet.node.releases.lock import Lock
from localpuppet.node.releases.lockfile import (
    CREATE_MANIFEST,
    EMPTY,
    LOCK,
    MANIFEST,
    check_complete,
    parse_lock,
    parse_manifest,
)
from localpuppet.node.releases.manifest import (
    GitModule,
    Manifest,
    check_modulepath,
    refuse_untagged,
)

# What a working copy is called where rules need a release's name.
_ITSELF = ReleasePath("the-release/tags/itself")
_SITE_SAYS = "localpuppet.yaml says tags_only"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseFiles:
    """Reads manifests and locks.

    Attributes:
        documents: Reads documents.
        allow_file: Whether `file://` URLs are allowed.
        tags_only: Whether the site takes single modules at tags only.
        basemodulepath: The site's `$basemodulepath` for `environment.conf`.
    """

    documents: Documents
    allow_file: bool
    tags_only: bool = False
    basemodulepath: tuple[Path, ...] = ()

    def parse_manifest(self, data: bytes, where: str) -> Manifest:
        """Return the manifest in `data`, without checks that need its release.

        Raises:
            InvalidInputError: The manifest is invalid.
        """
        return parse_manifest(
            data, documents=self.documents, where=where, allow_file=self.allow_file
        )

    def manifest(
        self, directory: Path, app: ReleasePath = _ITSELF, *, immutable: bool = True
    ) -> Manifest:
        """Return the manifest in a directory, checked against the site's rules.

        Args:
            directory: A working copy, or a release on this node.
            app: The release; a working copy has no name yet.
            immutable: Whether its collections must be tags.

        Raises:
            InvalidInputError: The manifest is invalid.
        """
        file = directory / MANIFEST
        manifest = self.parse_manifest(_read(file), str(file))
        with errors_at(str(file), LocalpuppetError):
            self._refuse(app, manifest, immutable=immutable)
        return manifest

    def lock(self, directory: Path) -> Lock | None:
        """Return the lock in a directory; `None` without one.

        Raises:
            InvalidInputError: The lock is invalid.
        """
        file = directory / LOCK
        if not file.exists():
            return None
        return self._parse_lock(_read(file), str(file))

    def locked(self, app: ReleasePath, read: Callable[[str], bytes | None]) -> Lock:
        """Return the lock of a release, checked against its manifest.

        Args:
            app: The release.
            read: Returns the bytes of a file at the top of the release's tree, or `None`.

        Raises:
            InvalidInputError: The manifest is missing, or the lock for its dependencies is; one of
                the two is invalid, or they disagree.
        """
        data = read(MANIFEST)
        if data is None:
            raise InvalidInputError(f"there is no {MANIFEST}", where=app, hint=CREATE_MANIFEST)
        manifest = self.parse_manifest(data, f"{app}/{MANIFEST}")
        self._refuse(app, manifest, immutable=True)
        locked = read(LOCK)
        if locked is None:
            if manifest.modulepath or manifest.modules:
                raise InvalidInputError(
                    f"there is no {LOCK}, and the manifest has dependencies",
                    where=app,
                    hint="run 'localpuppet release lock', commit, tag",
                )
            return EMPTY
        lock = self._parse_lock(locked, f"{app}/{LOCK}")
        check_complete(manifest, lock, where=str(app))
        return lock

    def pinned(self, directory: Path, manifest: Manifest, *, work_trees: bool = True) -> Lock:
        """Return the lock of mutable code, checked against its manifest.

        Args:
            directory: A work tree, or `trunk`.
            manifest: Its manifest.
            work_trees: Whether its lock may name work trees of modules on this machine: only if
                its user is the one who wrote it.

        Raises:
            InvalidInputError: The lock is missing, invalid, or does not fit.
        """
        lock = self.lock(directory)
        if lock is None:
            if manifest.modules:
                raise InvalidInputError(
                    f"there is no {LOCK}, and the manifest has modules",
                    where=str(directory),
                    hint=f"run 'localpuppet release lock {directory}'",
                )
            return EMPTY
        check_complete(manifest, lock, where=str(directory / LOCK), work_trees=work_trees)
        return lock

    def refuse_open_branches(self, manifest: Manifest, directory: Path) -> None:
        """Reject branches if no lock pins their commits.

        Raises:
            InvalidInputError: The manifest has a branch and no lock.
        """
        for name, module in manifest.modules.items():
            branch = isinstance(module, GitModule) and module.kind == "branch"
            if branch and not is_file(directory / LOCK):
                raise InvalidInputError(
                    f"is a branch, and there is no {LOCK}",
                    where=f"modules.{name}",
                    hint="'localpuppet release lock' says which commit it is",
                )

    def _parse_lock(self, data: bytes, where: str) -> Lock:
        return parse_lock(data, documents=self.documents, where=where, allow_file=self.allow_file)

    def _refuse(self, app: ReleasePath, manifest: Manifest, *, immutable: bool) -> None:
        check_modulepath(app, manifest, tags_only=immutable)
        if self.tags_only:
            refuse_untagged(manifest, because=_SITE_SAYS)


def _read(file: Path) -> bytes:
    """Return the bytes of a file; if others could write it, name all such files beside it."""
    try:
        return read_user_file(file)
    except ForeignFileError:
        refuse_foreign_directory(file.parent)
        raise
