"""Resolves names in a manifest to pins whose trees are fetched later.

    a branch -> the commit that it is now;  a range -> the newest version in it

Locked entries stay. A new pin may have an empty digest.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from localpuppet.base.errors import InvalidInputError, UnavailableError, gather_unavailable
from localpuppet.base.formats.names import did_you_mean
from localpuppet.node.releases.forge.versions import ModuleVersion, Range, newest
from localpuppet.node.releases.lock import AnyPin, CommitPin, ForgePin, Pin
from localpuppet.node.releases.lockfile import fits
from localpuppet.node.releases.manifest import Manifest
from localpuppet.node.releases.module import ForgeModule, GitModule, Module

if TYPE_CHECKING:
    from localpuppet.node.releases.forge.ports import ModuleForge
    from localpuppet.node.releases.git.repository import Repository

Draft = CommitPin | ForgePin


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
