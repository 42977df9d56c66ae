"""Writes locks: every name in a manifest, resolved to commits, archives and digests.

A lock is written after its trees were fetched, verified and stored. Locked entries stay as they are
unless the user requests an update. `moves` and `outdated` only compare.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from localpuppet.base.errors import (
    InvalidInputError,
    LocalpuppetError,
    UnavailableError,
    errors_at,
    gather_unavailable,
    raise_unavailable,
)
from localpuppet.base.formats.names import check_known
from localpuppet.base.machine.files import write_durably
from localpuppet.base.value import Value
from localpuppet.node.releases.fetch import Supply, WantedTag
from localpuppet.node.releases.git.git_modules import GitModule, Pin
from localpuppet.node.releases.git.git_names import Tag
from localpuppet.node.releases.manifest import EMPTY, LOCK, MANIFEST, Lock, Manifest, to_text
from localpuppet.node.releases.modules import GIT, Module, ModulePin, ModuleSource, by_kind
from localpuppet.node.releases.source import tag_of

if TYPE_CHECKING:
    from localpuppet.node.releases.git.mirrors import Git


def resolve_modules(
    modules: Mapping[str, Module],
    *,
    kept: Mapping[str, ModulePin],
    update: Collection[str],
    source: Callable[[str], ModuleSource],
    failed: list[UnavailableError],
) -> dict[str, ModulePin]:
    """Resolve single modules that are not tags; `source` is called only if it is needed.

    A pin of `kept` stays if it fits the manifest, unless its name is one of `update`.
    """
    resolved: dict[str, ModulePin] = {}
    asked: dict[str, dict[str, Module]] = {}
    for name, module in modules.items():
        pin, draft = kept.get(name), module.draft()
        if module.is_tag:
            continue
        stays = pin is not None and module.fits(pin) and module.place == pin.place
        if pin is not None and stays and not pin.is_tag and name not in update:
            resolved[name] = pin
        elif draft is not None:
            resolved[name] = draft
        else:
            asked.setdefault(module.kind, {})[name] = module
    for kind in sorted(asked, key=lambda kind: kind != GIT):
        with gather_unavailable(failed):
            resolved |= source(kind).resolve(asked[kind])
    return resolved


def write_lock(
    directory: Path,
    *,
    supply: Supply,
    repository: "Git",
    accept_moved: bool,
    update: Collection[str] | None = None,
    paths: Mapping[str, Path] = MappingProxyType({}),
) -> Lock:
    """Resolve the manifest in a directory and write the lock beside it.

    Args:
        update: Single modules whose branch or range is resolved again; all for an empty
            collection, none for `None`.
        paths: Work trees of this machine that replace single modules, by name. Only `try`
            accepts such a lock.

    Raises:
        IntegrityError: A tag or archive changed or is malformed, or its signature is not
            trusted.
        UnavailableError: Repositories or the forge are unreachable; the message names all.
    """
    manifest = supply.files.manifest(directory)
    old = supply.files.lock(directory) or EMPTY
    file = str(directory / LOCK)
    for name in (*(update or ()), *paths):
        problem = f"{name!r} is not a module of the manifest"
        check_known(name, manifest.modules, problem, where=str(directory / MANIFEST))
    pins: dict[str, ModulePin] = {}
    modules = supply.modules(repository)
    failed: list[UnavailableError] = []  # one run names every repository to look at
    with errors_at(str(directory / MANIFEST), LocalpuppetError):
        wanted = _wanted(manifest, supply)
        drafts = resolve_modules(
            manifest.modules,
            kept={} if update is not None and not update else old.modules,
            update=update or (),
            source=modules.source,
            failed=failed,
        )
    if not accept_moved:
        wanted = _as_pinned(wanted, old, file)
        drafts |= {
            name: drafts[name].bound(pin) for name, pin in old.modules.items() if name in drafts
        }
    else:
        drafts = {name: draft.unbound() for name, draft in drafts.items()}
    place = errors_at(str(directory / MANIFEST), UnavailableError)
    with supply.store.locks.take_for_changes(), place:
        supply.store.sweep(repository.rubbish())
        budget = supply.store.budget()
        fetcher = supply.tags(repository)
        with gather_unavailable(failed):
            pins |= fetcher.bring(wanted, budget=budget)
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


def _wanted(manifest: Manifest, supply: Supply) -> dict[str, WantedTag]:
    wanted = {
        f"modules.{name}": WantedTag(url=module.url, tag=Tag(module.ref), where=f"modules.{name}")
        for name, module in manifest.modules.items()
        if isinstance(module, GitModule) and module.is_tag
    }
    for index, entry in enumerate(manifest.modulepath):
        if (source := supply.sources.get(entry.source)) is None:
            raise InvalidInputError(
                f"localpuppet.yaml does not declare a source {entry.source!r}",
                where=f"modulepath[{index}]",
                hint="declare it: 'sources: {NAME: {git: URL}}'",
            )
        key = f"sources.{entry}"
        wanted[key] = WantedTag(url=source.url, tag=tag_of(entry), where=key, source=source)
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


class PinMove(Value):
    """A name whose pin changed, or could change: a new name has no old pin, a removed one no new.

    `changes` is the URL of a page with the changes.
    """

    name: str
    old: str
    new: str
    changes: str = ""

    def to_dict(self) -> dict[str, str | None]:
        return {name: value or None for name, value in asdict(self).items()}


def moves(old: Lock, new: Lock) -> tuple[PinMove, ...]:
    """Return what differs between two locks, by name."""
    moved = []
    for key in sorted({*old.pins, *new.pins}):
        before, after = old.pins.get(key), new.pins.get(key)
        if before != after:
            moved.append(
                PinMove(
                    name=key.partition(".")[2],
                    old=before.label if before else "",
                    new=after.label if after else "",
                    changes=after.changes(before) if before and after else "",
                )
            )
    return tuple(moved)


def outdated(lock: Lock, source: Callable[[str], ModuleSource]) -> tuple[PinMove, ...]:
    """Return the possible updates, by name."""
    pins, newer = lock.pins, dict[str, str]()
    for kind, some in by_kind(pins).items():
        newer |= source(kind).newer(some)
    return tuple(
        PinMove(name=key.partition(".")[2], old=pins[key].label, new=newer[key])
        for key in sorted(pins)
        if newer[key]
    )
