"""Writes locks: every name in a manifest, resolved to commits, archives and digests.

A lock is written after its trees were fetched, verified and stored. Locked entries stay as they are
unless the user requests an update.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
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
from localpuppet.base.machine.files import write_durably
from localpuppet.node.releases.fetch import WantedTag
from localpuppet.node.releases.git.names import Tag
from localpuppet.node.releases.lock import AnyPin, Lock, Pin
from localpuppet.node.releases.lockfile import EMPTY, LOCK, MANIFEST, to_text
from localpuppet.node.releases.manifest import Manifest
from localpuppet.node.releases.module import GitModule
from localpuppet.node.releases.single.resolving import (
    as_locked,
    refuse_unknown,
    resolve_modules,
    unbound,
)
from localpuppet.node.releases.source import split
from localpuppet.node.releases.supply import Supply

if TYPE_CHECKING:
    from localpuppet.node.releases.git.repository import Repository

NO_PATHS: Mapping[str, Path] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class LockWriter:
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
