"""Writes locks: every name in a manifest, resolved to commits, archives and digests.

A lock is written after its trees were fetched, verified and stored. Locked entries stay as they are
unless the user requests an update.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.errors import (
    InvalidInputError,
    LocalpuppetError,
    UnavailableError,
    errors_at,
    gather_unavailable,
    raise_unavailable,
)
from localpuppet.base.formats.names import did_you_mean
from localpuppet.base.machine.files import write_durably
from localpuppet.base.value import Value
from localpuppet.node.releases.fetch import Supply, WantedTag
from localpuppet.node.releases.forge.versions import ModuleVersion, Range, newest
from localpuppet.node.releases.git.names import Tag
from localpuppet.node.releases.manifest import (
    AnyPin,
    CommitPin,
    ForgeModule,
    ForgePin,
    GitModule,
    Lock,
    Manifest,
    Module,
    Pin,
)
from localpuppet.node.releases.release_files import EMPTY, LOCK, MANIFEST, fits, to_text
from localpuppet.node.releases.source import split

if TYPE_CHECKING:
    from localpuppet.node.releases.forge.archive import ModuleForge
    from localpuppet.node.releases.git.repository import Repository


Draft = CommitPin | ForgePin
NO_PATHS: Mapping[str, Path] = {}


def refuse_unknown(names: Collection[str], manifest: Manifest, *, where: str) -> None:
    """Reject names that are not single modules of a manifest.

    Raises:
        InvalidInputError: A name is unknown.
    """
    for name in names:
        if name not in manifest.modules:
            raise InvalidInputError(
                f"{name!r} is not a module of the manifest",
                where=where,
                hint=did_you_mean(name, list(manifest.modules)),
            )


def resolve_modules(
    modules: Mapping[str, Module],
    *,
    kept: Mapping[str, AnyPin],
    update: Collection[str],
    repository: "Repository",
    forge: "Callable[[], ModuleForge]",
    failed: list[UnavailableError],
) -> dict[str, Draft]:
    """Resolve single modules that are not tags.

    Args:
        modules: The manifest's modules by name.
        kept: Pins that stay if they fit the manifest.
        update: Names to resolve even if a pin fits.
        repository: Git.
        forge: Returns the Forge; called only if it is needed.
        failed: Takes the errors of unreachable repositories or the Forge; their modules are left
            out.

    Raises:
        InvalidInputError: A branch, module, or version does not exist.
    """
    resolved: dict[str, Draft] = {}
    branches: dict[str, GitModule] = {}
    ranges: dict[str, ForgeModule] = {}
    for name, module in modules.items():
        pin = kept.get(name)
        if isinstance(module, GitModule) and module.kind == "tag":
            continue
        if pin is not None and name not in update and _stays(module, pin):
            resolved[name] = pin  # type: ignore[assignment] # a tag's pin does not fit
        elif isinstance(module, ForgeModule):
            exact = module.version.exact
            if exact is None:
                ranges[name] = module
            else:
                resolved[name] = _archive(module, exact)
        elif module.kind == "commit":
            resolved[name] = CommitPin(url=module.url, branch="", commit=module.ref, tree_sha256="")
        else:
            branches[name] = module
    if branches:
        with gather_unavailable(failed):
            resolved |= _heads(branches, repository)
    if ranges:
        with gather_unavailable(failed):
            resolved |= _newest(ranges, forge())
    return resolved


def _stays(module: Module, pin: AnyPin) -> bool:
    if isinstance(module, GitModule) and (isinstance(pin, ForgePin) or pin.url != module.url):
        return False
    return not isinstance(pin, Pin) and fits(module, pin)


def _archive(module: ForgeModule, version: ModuleVersion) -> ForgePin:
    return ForgePin(forge=module.slug, version=version, archive_sha256="", tree_sha256="")


def _heads(modules: Mapping[str, GitModule], repository: "Repository") -> dict[str, Draft]:
    refs = repository.refs([module.url for module in modules.values()])
    resolved: dict[str, Draft] = {}
    for name, module in modules.items():
        commit = refs[module.url].get(f"refs/heads/{module.ref}")
        if commit is None:
            raise InvalidInputError(
                f"the repository has no branch {module.ref!r}",
                where=f"modules.{name}",
                hint=f"git ls-remote --heads {module.url}",
            )
        resolved[name] = CommitPin(url=module.url, branch=module.ref, commit=commit, tree_sha256="")
    return resolved


def _newest(modules: Mapping[str, ForgeModule], forge: "ModuleForge") -> dict[str, Draft]:
    versions = forge.versions([module.slug for module in modules.values()])
    resolved: dict[str, Draft] = {}
    for name, module in modules.items():
        version = newest(module.version, versions[module.slug])
        if version is None:
            highest = newest(Range.parse("latest", where=""), versions[module.slug])
            raise InvalidInputError(
                f"the forge has no version {module.version.text} of {module.slug}",
                where=f"modules.{name}",
                hint=f"the newest there is {highest}" if highest else "it has only pre-releases",
            )
        resolved[name] = _archive(module, version)
    return resolved


def as_locked(drafts: Mapping[str, Draft], old: Mapping[str, AnyPin]) -> dict[str, Draft]:
    """Return drafts with the digests that the lock has for the same commit or version."""
    resolved = dict(drafts)
    for name, draft in drafts.items():
        pin = old.get(name)
        if (
            isinstance(draft, ForgePin)
            and isinstance(pin, ForgePin)
            and (pin.forge, pin.version) == (draft.forge, draft.version)
        ):
            resolved[name] = pin
        elif (
            isinstance(draft, CommitPin)
            and isinstance(pin, CommitPin)
            and (pin.url, pin.commit) == (draft.url, draft.commit)
        ):
            resolved[name] = replace(draft, tree_sha256=pin.tree_sha256)
    return resolved


def unbound(drafts: Mapping[str, Draft]) -> dict[str, Draft]:
    """Return drafts without digests, so that any bytes are accepted."""
    return {
        name: replace(draft, archive_sha256="", tree_sha256="")
        if isinstance(draft, ForgePin)
        else replace(draft, tree_sha256="")
        for name, draft in drafts.items()
    }


class LockWriter(Value):
    """Writes locks.

    Attributes:
        supply: Provides code; locked trees are in the store afterwards.
        repository: Git.
    """

    supply: Supply
    repository: "Repository"

    def lock(
        self,
        directory: Path,
        *,
        accept_moved: bool,
        update: Collection[str] | None = None,
        paths: Mapping[str, Path] = NO_PATHS,
    ) -> Lock:
        """Resolve the manifest in `directory` and write the lock beside it.

        Args:
            directory: A working copy of a release.
            accept_moved: Lock tags or versions that have moved.
            update: Single modules whose branch or range is resolved again; all for an empty
                collection, none for `None`.
            paths: Work trees of this machine that replace single modules, by name. Only `try`
                accepts such a lock.

        Raises:
            InvalidInputError: The manifest is invalid, or names something mutable or unknown.
            IntegrityError: A tag or archive changed or is malformed, or its signature is not
                trusted.
            UnavailableError: Repositories or the forge are unreachable; the message names all of
                them.
        """
        manifest = self.supply.files.manifest(directory)
        old = self.supply.files.lock(directory) or EMPTY
        file = str(directory / LOCK)
        refuse_unknown([*(update or ()), *paths], manifest, where=str(directory / MANIFEST))
        pins: dict[str, AnyPin] = {}
        failed: list[UnavailableError] = []  # one run names every repository to look at
        with errors_at(str(directory / MANIFEST), LocalpuppetError):
            wanted = self._wanted(manifest)
            drafts = resolve_modules(
                manifest.modules,
                kept={} if update is not None and not update else old.modules,
                update=update or (),
                repository=self.repository,
                forge=self.supply.forge,
                failed=failed,
            )
        if not accept_moved:
            wanted = _as_pinned(wanted, old, file)
            drafts = as_locked(drafts, old.modules)
        else:
            drafts = unbound(drafts)
        place = errors_at(str(directory / MANIFEST), UnavailableError)
        with self.supply.store.locks.take_for_changes(), place:
            self.supply.store.sweep(self.repository.rubbish())
            budget = self.supply.store.budget()
            fetcher = self.supply.tags(self.repository)
            with gather_unavailable(failed):
                pins |= fetcher.bring(wanted, budget=budget)
            modules = self.supply.modules(self.repository)
            keyed = {f"modules.{name}": draft for name, draft in drafts.items()}
            with gather_unavailable(failed):
                pins |= modules.bring(keyed, file=file, ask_all=True, budget=budget)
            raise_unavailable(failed)
        lock = Lock(
            modules={name: pins[f"modules.{name}"] for name in manifest.modules},
            sources={
                entry: pin
                for entry in manifest.modulepath
                if isinstance(pin := pins[f"sources.{entry}"], Pin)
            },
            paths={name: str(path) for name, path in paths.items()},
        )
        write_durably(directory / LOCK, to_text(lock).encode(), mode=0o644)
        return lock

    def _wanted(self, manifest: Manifest) -> dict[str, WantedTag]:
        wanted = {
            f"modules.{name}": WantedTag(
                url=module.url, tag=Tag(module.ref), where=f"modules.{name}"
            )
            for name, module in manifest.modules.items()
            if isinstance(module, GitModule) and module.kind == "tag"
        }
        for index, entry in enumerate(manifest.modulepath):
            source = self.supply.sources.get(entry.source)
            if source is None:
                raise InvalidInputError(
                    f"localpuppet.yaml does not declare a source {entry.source!r}",
                    where=f"modulepath[{index}]",
                    hint="declare it: 'sources: {NAME: {git: URL}}'",
                )
            key = f"sources.{entry}"
            wanted[key] = WantedTag(url=source.url, tag=split(entry), where=key, source=source)
        return wanted


def _as_pinned(wanted: Mapping[str, WantedTag], old: Lock, file: str) -> dict[str, WantedTag]:
    """Return the wanted tags with their pins in the existing lock, without digests of trees.

    A tag that is new in the lock has no pin.
    """
    pins = {key: pin for key, pin in old.pins.items() if isinstance(pin, Pin)}
    return {
        key: replace(item, pinned=pins[key], where=f"{file}: {key}")
        if key in pins and pins[key].tag == item.tag
        else item
        for key, item in wanted.items()
    }
