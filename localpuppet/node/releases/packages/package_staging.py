"""Stages a release from where it is: git, an installed package, or a release pack.

- A declared source is git's; `releases.staging` stages from it.
- Nothing in a package is trusted before its bytes were hashed.
- The lock in the release's own tree decides which trees belong to it.
- A package does not satisfy a source that requires signed tags.
"""

import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.errors import IntegrityError, InvalidInputError, LocalpuppetError, StateError
from localpuppet.base.formats.names import ReleasePath, did_you_mean
from localpuppet.base.machine.files import read_user_file
from localpuppet.node.releases.fetch import Supply
from localpuppet.node.releases.git.git_modules import Pin
from localpuppet.node.releases.git.git_names import parse_digest
from localpuppet.node.releases.release_records import StagedRelease, Verifications
from localpuppet.node.releases.source import tag_of
from localpuppet.node.releases.staging import ReleaseStaging

if TYPE_CHECKING:
    from localpuppet.node.releases.packages.directory import Package


@dataclass(slots=True, kw_only=True, eq=False)
class PackageStaging:
    """Stages a release from git, a package or a pack.

    `install` has the machine's package manager install a package by its name, if it may.
    """

    staging: ReleaseStaging
    supply: Supply
    directories: Sequence[Path]
    install: Callable[[str], None] | None = None

    def stage(
        self, app: ReleasePath, *, refresh: bool = False, accept_moved: bool = False
    ) -> StagedRelease:
        """Stage a release: from git if its source is declared, else from its package."""
        fetch = partial(self._installed, app, accept_moved=accept_moved)
        return self.staging.stage(
            app,
            refresh=refresh,
            accept_moved=accept_moved,
            fetch=None if app.source in self.supply.sources else fetch,
        )

    def stage_installed(self, app: ReleasePath) -> StagedRelease:
        """Stage a release from its installed package, even where its source is declared."""
        return self.staging.switch(
            app, lambda known: self._installed(app, known, accept_moved=False)
        )

    def stage_pack(
        self, app: ReleasePath, pack: Path, *, accept_moved: bool = False
    ) -> StagedRelease:
        """Stage a release from a release pack.

        Raises:
            IntegrityError: The pack is damaged or hostile, or differs from the staged release.
        """
        return self.staging.switch(
            app,
            lambda known: self._packed(app, known, pack, accept_moved=accept_moved),
            accept_moved=accept_moved,
        )

    def _packed(
        self, app: ReleasePath, known: StagedRelease | None, pack: Path, *, accept_moved: bool
    ) -> StagedRelease:
        from localpuppet.node.releases.packages import directory
        from localpuppet.node.releases.packages import (
            tools as packs,  # a release from git needs neither, nor tarfile
        )

        with self.supply.store.scratch() as scratch:
            package = directory.load(packs.unpack(pack, scratch), pack=pack)
            if package.release != app:
                raise InvalidInputError(
                    f"is a pack of {str(package.release)[:80]!r}, not of {app}", where=str(pack)
                )
            return self._take(app, known, package, scratch, accept_moved=accept_moved)

    def _installed(
        self, app: ReleasePath, known: StagedRelease | None, *, accept_moved: bool
    ) -> StagedRelease:
        from localpuppet.node.releases.packages import directory

        if (package := directory.find(self.directories, app)) is None:
            if (pack := directory.find_pack(self.directories, app)) is not None:
                return self._packed(app, known, pack, accept_moved=accept_moved)
            if self.install is not None:
                self.install(directory.package_name(app))
                package = directory.find(self.directories, app)
        if package is None:
            raise InvalidInputError(
                f"{app.source!r} is not a source that localpuppet.yaml declares, and"
                f" {', '.join(map(str, self.directories))} has no package or pack of it"
                if app.source not in self.supply.sources
                else f"no package or pack of it is in {', '.join(map(str, self.directories))}",
                where=app,
                hint=did_you_mean(app.source, sorted(self.supply.sources.keys() - {app.source})),
            )
        with self.supply.store.scratch() as scratch:
            return self._take(app, known, package, scratch, accept_moved=accept_moved)

    def _take(
        self,
        app: ReleasePath,
        known: StagedRelease | None,
        package: "Package",
        scratch: Path,
        *,
        accept_moved: bool,
    ) -> StagedRelease:
        """Bring the trees of a package into the store; return their verified record."""
        staged = self._record(app, package)
        pin = self.staging.remembered(app, known)
        if pin is not None and not _same(pin, staged.pin) and not accept_moved:
            raise IntegrityError(
                f"is another {staged.pin.tag}: here it is {pin.commit[:12]}"
                f" (tree {pin.tree_sha256[:12]}), the package has {staged.pin.commit[:12]}"
                f" ({staged.pin.tree_sha256[:12]})",
                where=package.file,
                hint="find out which is right; 'localpuppet stage --accept-moved' accepts the"
                " package's",
            )
        self._refuse_unsigned(staged, known)
        new = [sha256 for sha256 in staged.trees.values() if not self.supply.store.has(sha256)]
        self._add(staged.trees, package, scratch)
        try:
            return self._described(app, staged, package)
        except LocalpuppetError:
            for sha256 in new:
                self.supply.store.remove(sha256)
            raise

    def _described(
        self, app: ReleasePath, recorded: StagedRelease, package: "Package"
    ) -> StagedRelease:
        """Return the record of a release whose trees are in the store, from its own lock."""
        own = self.supply.store.path(recorded.pin.tree_sha256)
        lock = self.supply.files.locked(app, lambda name: _own_file(own / name))
        staged = self.staging.describe(app, recorded.pin, lock)
        if staged != recorded:
            raise IntegrityError(
                "its record and the lock in it name different trees",
                where=package.file,
                hint="do not use the package; build it again",
            )
        return staged

    def _record(self, app: ReleasePath, package: "Package") -> StagedRelease:
        try:
            raw = self.supply.files.documents.parse(
                package.data, schema="package", where=package.file
            )
            # The time of the commit is the package's own.
            staged = StagedRelease.from_dict({key: raw[key] for key in raw if key != "time"})
            for name, sha256 in [*staged.modules.items(), *staged.sources.items()]:
                parse_digest(sha256, where=name)
            for name in staged.sources:
                ReleasePath.parse(name, where="sources")
        except (InvalidInputError, StateError) as error:
            place = "" if error.where.startswith(package.file) else package.file
            raise IntegrityError(error.what, where=place or error.where) from error
        if staged.pin.tag != tag_of(app):
            raise IntegrityError(f"is the tag {staged.pin.tag}, not {app}", where=package.file)
        return staged

    def _refuse_unsigned(self, staged: StagedRelease, known: StagedRelease | None) -> None:
        """Reject trees of a source that requires signatures, unless git has verified them.

        A tree in the store proves nothing, because any release may have brought it. Only git knows
        the age of a tag that `gc` removed.
        """
        source = self.supply.sources.get(staged.release.source)
        if known is None and source is not None and source.fresh is not None:
            raise IntegrityError(
                f"{source.name} limits the age of tags, and a package has no tag timestamp",
                where=str(staged.release),
                hint="stage it from git",
            )
        known_tags = Verifications(self.supply.store.directory)
        if (path := known_tags.unverified(staged, self.supply.sources)) is not None:
            raise IntegrityError(
                f"{path.source} requires signed tags, and a package has no signature",
                where=str(path),
                hint="stage it from git",
            )

    def _add(self, trees: Mapping[str, str], package: "Package", scratch: Path) -> None:
        missing = {
            sha256: name for name, sha256 in trees.items() if not self.supply.store.sound(sha256)
        }
        places = {}
        for number, (sha256, name) in enumerate(missing.items()):
            places[name] = scratch / f"tree-{number}"
            package.take(sha256, places[name])

        def accept(digests: Mapping[str, str]) -> None:
            for sha256, name in missing.items():
                if digests[name] != sha256:
                    raise IntegrityError(
                        f"has the digest {digests[name][:16]}…, the package says {sha256[:16]}…",
                        where=f"{package.where}: {name}",
                        hint="the package was changed or damaged; install it again",
                    )

        self.supply.store.add(places.items(), accept=accept)


def _same(pin: Pin, other: Pin) -> bool:
    """Return whether two pins are equal but for their URL (a mirror)."""
    fields = ("tag", "tag_object", "commit", "tree_sha256")
    return all(getattr(pin, field) == getattr(other, field) for field in fields)


def _own_file(path: Path) -> bytes | None:
    """Return a file at the top of a release's own tree, or `None`."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise IntegrityError("must be an ordinary file", where=str(path))
    return read_user_file(path)
