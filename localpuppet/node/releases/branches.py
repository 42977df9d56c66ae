"""Code that can change: a source's branches, `trunk`, and work trees, each with its modules.

    control/branches/feature/x  ->  the commit of that branch, fetched at each stage

- `branches/` in the state directory records the commit of each branch at its last fetch.
- A branch never counts as a release, and is not used where tags or signatures are required.
- A run uses one complete commit, even if the branch moves meanwhile.
- Trees are compared with their pins, as for a release.

The lock of a revision that the user does not trust names what its author likes, so it decides
neither who asks nor what is shown:

- what the base's lock pins, and other versions of the repositories and Forge modules that the base
  or the settings name: brought as for the base;
- anything else: as everybody can get it, from listed hosts.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar
from urllib.parse import urlsplit

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, UnavailableError, errors_at
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.machine.files import (
    ForeignFileError,
    refuse_foreign,
    refuse_foreign_directory,
)
from localpuppet.base.value import Value
from localpuppet.node.releases.composing import ModuleLinks, release_links
from localpuppet.node.releases.fetch import Supply, wanted_of
from localpuppet.node.releases.git.git_modules import CommitPin, head
from localpuppet.node.releases.git.git_names import parse_digest, parse_object_id
from localpuppet.node.releases.git.work_tree import Ignored
from localpuppet.node.releases.manifest import (
    EMPTY,
    LOCK,
    MANIFEST,
    Lock,
    Manifest,
    check_complete,
    require_manifest,
)
from localpuppet.node.releases.modules import ModulePin, source_of_kind
from localpuppet.node.releases.release import Release, ReleaseLocation, assemble, missing_modules
from localpuppet.node.releases.release_records import NamedRecord, ReleaseRecords
from localpuppet.node.releases.source import source_of

if TYPE_CHECKING:
    from localpuppet.node.releases.git.mirrors import Git


class CodeSupply(Value):
    """One way of bringing code; `repository` provides git, under a title for progress."""

    supply: Supply
    repository: "Callable[[str], AbstractContextManager[Git]]"


Ways = Iterator[tuple[CodeSupply, Mapping[str, ModulePin]]]


class LockedModules(CodeSupply):
    """Brings locked modules and collections onto the node."""

    def bring(self, lock: Lock, moduledir: str, *, title: str, file: Path) -> None:
        """Bring the trees of a lock into the store, and link its modules."""
        wanted = wanted_of(lock, self.supply.sources, file=str(file))
        ways = [*self.ways(lock.pins, str(file))]
        with self.supply.store.locks.take_for_changes():
            budget = self.supply.store.budget()
            for way, pins in ways:
                tags = {key: wanted[key] for key in pins if key in wanted}
                with way.repository(title) as repository:
                    way.supply.tags(repository).bring(tags, budget=budget)
                    way.supply.modules(repository).bring(pins, file=str(file), budget=budget)
            links = release_links(file.parent, moduledir, lock.trees)
            ModuleLinks(self.supply.store.directory).make(links)

    def ways(self, pins: Mapping[str, ModulePin], file: str) -> Ways:
        """Yield how to bring pins, with those that are brought so."""
        yield self, pins


class UntrustedModules(LockedModules):
    """Brings the modules of an untrusted revision."""

    base: frozenset[ModulePin]
    named: frozenset[str]
    known: CodeSupply
    public: CodeSupply
    hosts: frozenset[str]

    def ways(self, pins: Mapping[str, ModulePin], file: str) -> Ways:
        """Yield how to bring pins; see `LockedModules.ways`."""
        same = {key: pin for key, pin in pins.items() if pin in self.base}
        names = self.named | {pin.place for pin in self.base}
        known = {key: pin for key, pin in pins.items() if pin.place in names and key not in same}
        public = {key: pin for key, pin in pins.items() if key not in same and key not in known}
        for key, pin in public.items():
            self._refuse_unlisted(pin, f"{file}: {key}")
        for way, some in ((self, same), (self.known, known), (self.public, public)):
            if some:
                yield way, some

    def _refuse_unlisted(self, pin: ModulePin, where: str) -> None:
        url = urlsplit(source_of_kind(pin.kind).address(pin, self.supply.access))
        # Only an https host can be listed.
        cures = [pin.cure] if pin.cure else []
        cures += ["its host in 'preview.hosts'"] if url.scheme == "https" else []
        name = f"name {' or '.join(cures)} of localpuppet.yaml, or " if cures else ""
        if url.scheme != "https" or url.netloc.lower().removesuffix(":443") not in self.hosts:
            raise InvalidInputError(
                "only this revision names this code, which is at no https host of 'preview.hosts';"
                " the revision is not trusted",
                where=where,
                hint=f"{name}pass '--trusted' for code that may do all that you can",
            )


# Puppet splits and interpolates what is in the settings that get the path.
_BAD = " \t\n:'\"\\,$"
SCHEMA = 1


class StagedBranch(NamedRecord):
    """A branch at its last fetch."""

    SCHEMA: ClassVar = SCHEMA
    commit: Annotated[str, parse_object_id]
    tree_sha256: Annotated[str, parse_digest]


class BranchRecords(ReleaseRecords[StagedBranch]):
    """The branches of this node at their last fetch."""

    def __init__(self, state: Path) -> None:
        super().__init__(state / "branches", StagedBranch)


class MutableCode(LockedModules):
    """Branches, `trunk` and work trees of a node.

    `public` brings code as everybody can get it, from `hosts` (`UntrustedModules`).
    """

    public: Callable[[], CodeSupply]
    modules: Path
    hosts: frozenset[str]
    immutable_only: bool
    ignored: Callable[[Path], Ignored]
    note: Callable[[str], None]

    @property
    def _records(self) -> BranchRecords:
        return BranchRecords(self.supply.store.directory)

    def _untrusted(self, base: Lock) -> UntrustedModules:
        public = self.public()
        return UntrustedModules(
            supply=self.supply,
            repository=self.repository,
            base=frozenset(base.pins.values()),
            named=frozenset(source.url for source in self.supply.sources.values()),
            known=CodeSupply(supply=replace(self.supply, proves=True), repository=self.repository),
            public=replace(public, supply=replace(public.supply, proves=True)),
            hosts=self.hosts,
        )

    def is_branch(self, path: ReleasePath) -> bool:
        """Return whether a release is a branch of a source, and not a directory of that name."""
        declared = path.source in self.supply.sources
        is_branch = path.is_branch and (declared or not (self.modules / path).is_dir())
        if is_branch and self.immutable_only:
            raise InvalidInputError(
                "can change, and 'immutable_only' is set", where=str(path), hint="name a tag"
            )
        return is_branch

    def stage(self, path: ReleasePath) -> None:
        """Stage the current commit of a branch, or the modules of trunk.

        A branch that is unreachable stays at its last fetched commit, which is noted.
        """
        if not self.is_branch(path):
            self.stage_trunk(path)
            return
        try:
            self.stage_branch(path)
        except UnavailableError as error:
            if (known := self._records.of(path)) is None:
                raise
            self.note(f"warning: {path} stays at {known.commit[:12]}: {error}")

    def stage_trunk(self, app: ReleasePath) -> Lock:
        """Bring the modules of `foo/trunk` onto this node; return their lock.

        Nothing is brought if it is missing, or if its modules are in its directory.
        """
        directory = self.modules / app
        if not (directory / MANIFEST).exists():
            return EMPTY
        manifest = self.supply.files.manifest(directory, app, immutable=False)
        if not missing_modules(manifest, directory):
            return EMPTY
        lock = self.supply.files.pinned(directory, manifest)
        title = f"staging modules of {app}"
        self.bring(lock, manifest.moduledir, title=title, file=directory / LOCK)
        return lock

    def stage_branch(self, app: ReleasePath) -> tuple[StagedBranch, Lock]:
        """Fetch the current commit of a branch, and the modules of its lock."""
        source = source_of(app, self.supply.sources)
        if source.signers is not None:
            raise InvalidInputError(
                "a branch has no signature, and its source requires signed tags",
                where=app,
                hint="name a tag of it",
            )
        changing = self.supply.store.locks.take_for_changes()
        with changing, self.repository(f"staging {app}") as repository:
            refs = repository.refs([source.url])[source.url]
            commit = parse_object_id(head(refs, source.url, app.branch, where=app), where=app)
            known = self._records.of(app)
            tree = known.tree_sha256 if known and known.commit == commit else ""
            pin = CommitPin(url=source.url, branch=app.branch, commit=commit, tree_sha256=tree)
            fetcher = self.supply.modules(repository)
            whole = fetcher.bring({str(app): pin}, file=str(app))[str(app)]
        staged = StagedBranch(release=app, commit=commit, tree_sha256=whole.tree_sha256)
        directory = self.supply.store.path(staged.tree_sha256)
        manifest, lock = self._read(app, directory)
        title = f"staging modules of {app}"
        self.bring(lock, manifest.moduledir, title=title, file=directory / LOCK)
        self._records.write(staged)
        return staged, lock

    def branch(self, app: ReleasePath) -> Release:
        """Return the last fetched commit of a branch as a release."""
        staged, store = self._records.of(app), self.supply.store
        if staged is None or not store.has(staged.tree_sha256):
            raise InvalidInputError(
                "is not on this node", where=str(app), hint="'localpuppet stage' fetches it"
            )
        directory = store.path(staged.tree_sha256)
        return self._assembled(app, directory, *self._read(app, directory), named=self.modules)

    def _read(self, app: ReleasePath, directory: Path) -> tuple[Manifest, Lock]:
        manifest = self.supply.files.manifest(directory, app)
        lock = self.supply.files.pinned(directory, manifest)
        check_complete(manifest, lock, where=str(app))
        return manifest, lock

    def work_tree(
        self,
        directory: Path,
        name: str | None = None,
        *,
        work_trees: bool = True,
        warn: Callable[[str], None] | None = None,
        base: Lock | None = None,
    ) -> Release:
        """Return a work tree as a release, with its modules on this node.

        Args:
            work_trees: Whether the lock may name work trees of modules on this machine.
            warn: Takes warnings: what Puppet or a release of the same tree would treat otherwise.
                By default they are notes.
            base: The lock of the base, if the code is not trusted: see `UntrustedModules`.
        """
        from localpuppet.node.releases.author.tagging import unused_parts  # agents seldom need it

        files = self.supply.files
        warn = warn or (lambda text: self.note(f"warning: {text}"))
        place = Path(os.path.abspath(directory))  # noqa: PTH100 - the path as its user knows it
        _refuse(place)
        manifest = files.manifest(place, immutable=False)
        lock = files.pinned(place, manifest, work_trees=work_trees)
        for path in lock.paths.values():
            refuse_foreign(Path(path))
        name = name or called(place)
        title = f"staging modules of {name}"
        modules = self if base is None else self._untrusted(base)
        modules.bring(lock, manifest.moduledir, title=title, file=place / LOCK)
        release = self._assembled(name, place, manifest, lock, named=None)
        ignored = self.ignored(place)
        lacking = _lacking(place, release, lock, ignored)
        for text in (*lacking, *unused_parts(place, manifest, files=files, but=ignored)):
            warn(text)
        return replace(release, work_tree=str(place))

    def _assembled(
        self, app: str, directory: Path, manifest: Manifest, lock: Lock, *, named: Path | None
    ) -> Release:
        """Return a directory as a release, whose modules and collections are in the store.

        It and its collections have their names in the directory `named`; `None` for a work tree.
        """
        links = release_links(directory, manifest.moduledir, lock.trees)
        single, hiera = ModuleLinks(self.supply.store.directory).places(directory, links)
        with errors_at(str(directory / MANIFEST), LocalpuppetError):
            place = ReleaseLocation(
                directory=directory,
                name=named / app if named else directory,
                inside=[directory],
                single=single if manifest.modules else None,
                hiera=hiera,
                collections=[
                    (
                        named / entry if named else Path(entry),
                        self.supply.store.path(lock.sources[entry].tree_sha256),
                    )
                    for entry in _locked(manifest, lock)
                ],
            )
            return assemble(app, manifest, place, files=self.supply.files)


def _lacking(place: Path, release: Release, lock: Lock, ignored: Ignored) -> Iterator[str]:
    """Yield a line for each module that this run has and a release of the same tree would lack."""
    top = place.resolve()
    for directory in map(Path.resolve, release.modulepath):
        for path in sorted(directory.iterdir()) if directory.is_relative_to(top) else ():
            name = path.relative_to(top).as_posix()
            if path.is_dir() and path.name not in lock.trees and name in ignored:
                yield (
                    f"{name} counts here and in no release: git ignores it, and the lock does not"
                    " have it"
                )


def called(directory: Path) -> str:
    """Return the name of a work tree in records, which is never a release's name."""
    return f"{directory.name} (work tree)"


def _locked(manifest: Manifest, lock: Lock) -> Sequence[ReleasePath]:
    """Return the collections of a manifest, which must all be in its lock."""
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
