"""Prepares an unreleased work tree for a run: `localpuppet try`.

The run uses the files on disk, uncommitted changes included, with the modules and collections of
the lock. The work tree stays unchanged.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, errors_at
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.machine.ownership import (
    ForeignFileError,
    refuse_foreign,
    refuse_foreign_directory,
)
from localpuppet.node.releases.git.ignored import Ignored
from localpuppet.node.releases.layout.links import ModuleLinks
from localpuppet.node.releases.lock import Lock
from localpuppet.node.releases.lockfile import LOCK, MANIFEST, require_manifest
from localpuppet.node.releases.making.leftovers import unused_parts
from localpuppet.node.releases.manifest import Manifest
from localpuppet.node.releases.mutable.modules import LockedModules
from localpuppet.node.releases.release import Release, ReleaseLocation, assemble
from localpuppet.node.releases.release_files import ReleaseFiles

# Puppet splits and interpolates what is in the settings that get the path.
_BAD = " \t\n:'\"\\,$"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkTrees:
    """Prepares work trees for runs.

    Attributes:
        state: The state directory.
        files: Reads manifests and locks.
        modules: Brings the trees that locks pin.
        ignored: Returns what git ignores in a directory.
        warn: Takes warnings: what Puppet or a release of the same tree would treat otherwise.
    """

    state: Path
    files: ReleaseFiles
    modules: LockedModules
    ignored: Callable[[Path], Ignored]
    warn: Callable[[str], None]

    def release(
        self, directory: Path, name: str | None = None, *, work_trees: bool = True
    ) -> Release:
        """Return a work tree as a release, with its modules on this node.

        Args:
            directory: The top of the work tree.
            name: The name of the release; by default that of the directory.
            work_trees: Whether the lock may name work trees of modules on this machine.

        Raises:
            InvalidInputError: The directory is not a work tree, others may write to it, or manifest
                and lock are invalid or do not fit.
            IntegrityError: A tree differs from its pin.
            UnavailableError: A repository or the forge is unreachable.
            BusyError: Another process changes the store.
        """
        place = Path(os.path.abspath(directory))  # noqa: PTH100 - the path as its user knows it
        _refuse(place)
        manifest = self.files.manifest(place, immutable=False)
        lock = self.files.pinned(place, manifest, work_trees=work_trees)
        for path in lock.paths.values():
            refuse_foreign(Path(path))
        name = name or called(place)
        self.modules.bring(lock, lock.trees, title=f"staging modules of {name}", file=place / LOCK)
        with errors_at(str(place / MANIFEST), LocalpuppetError):
            release = assemble(name, manifest, self._place(place, manifest, lock), files=self.files)
        ignored = self.ignored(place)
        self._name_what_a_release_lacks(place, release, lock, ignored)
        for text in unused_parts(place, manifest, files=self.files, but=ignored):
            self.warn(text)
        return replace(release, work_tree=str(place))

    def _name_what_a_release_lacks(
        self, place: Path, release: Release, lock: Lock, ignored: Ignored
    ) -> None:
        """Note the modules that this run has and a release of the same tree would lack."""
        top = place.resolve()
        own = [path.resolve() for path in release.modulepath]
        names = [
            path.relative_to(top).as_posix()
            for directory in own
            if directory.is_relative_to(top)
            for path in sorted(directory.iterdir())
            if path.is_dir() and path.name not in lock.trees
        ]
        for name in [name for name in names if name in ignored]:
            self.warn(
                f"{name} counts here and in no release: git ignores it, and the lock does"
                " not have it"
            )

    def _place(self, directory: Path, manifest: Manifest, lock: Lock) -> ReleaseLocation:
        objects = self.state / "objects"
        return ReleaseLocation(
            directory=directory,
            name=directory,
            inside=[directory],
            single=ModuleLinks(self.state).path(lock.trees) if manifest.modules else None,
            collections=[
                (Path(entry), objects / lock.sources[entry].tree_sha256)
                for entry in _locked(manifest, lock)
            ],
        )


def called(directory: Path) -> str:
    """Return the name of a work tree in records, which is never a release's name."""
    return f"{directory.name} (work tree)"


def _locked(manifest: Manifest, lock: Lock) -> Sequence[ReleasePath]:
    for index, entry in enumerate(manifest.modulepath):
        if entry not in lock.sources:
            raise InvalidInputError(
                f"{entry} is not locked",
                where=f"modulepath[{index}]",
                hint="name a tag of it, and run 'localpuppet release lock'",
            )
    return manifest.modulepath


def _refuse(directory: Path) -> None:
    bad = [character for character in str(directory) if character in _BAD]
    if bad or not str(directory).isprintable():
        raise InvalidInputError(
            "Puppet cannot use this path",
            where=repr(str(directory)[:200]),
            hint="move the work tree: no space, quote, comma, colon, backslash or $",
        )
    try:
        refuse_foreign(directory)
    except ForeignFileError:
        refuse_foreign_directory(directory)
        raise
    require_manifest(directory)
