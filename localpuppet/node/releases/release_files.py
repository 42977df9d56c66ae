"""Reads `manifest.yaml` and `manifest.lock` by the site's settings, and writes the lock."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, errors_at
from localpuppet.base.formats.documents import Documents
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.machine import files
from localpuppet.base.value import Value
from localpuppet.node.releases.git.git_modules import GitModule
from localpuppet.node.releases.manifest import (
    VERSION,
    Lock,
    Manifest,
    check_modulepath,
    refuse_untagged,
)
from localpuppet.node.releases.source import tag_of

MANIFEST = "manifest.yaml"
LOCK = "manifest.lock"
CREATE_MANIFEST = "create it with the line 'moduledir: modules'"
EMPTY = Lock(modules={}, sources={})
# What a working copy is called where rules need a release's name.
_ITSELF = ReleasePath("the-release/tags/itself")
_SITE_SAYS = "localpuppet.yaml says tags_only"


def require_manifest(directory: Path) -> None:
    """Raise `InvalidInputError`, with the way to make one, if a directory has no manifest."""
    if not (directory / MANIFEST).exists():
        hint = CREATE_MANIFEST
        if (directory / "Puppetfile").exists():
            hint = "make it from the Puppetfile: 'localpuppet release import'"
        raise InvalidInputError(f"there is no {MANIFEST}", where=str(directory), hint=hint)


def check_complete(manifest: Manifest, lock: Lock, *, where: str, work_trees: bool = False) -> None:
    """Reject a lock that does not fit its manifest, or without `work_trees` one that names some.

    Modules that are work trees of this machine are for a run of an unreleased work tree.
    """
    for name in lock.paths:
        if not work_trees:
            raise InvalidInputError(
                "is a work tree of the machine that locked it",
                where=f"{where}: paths.{name}",
                hint="run 'localpuppet release lock' without --path",
            )
    modules = {f"modules.{name}": module for name, module in manifest.modules.items()}
    tags = {f"sources.{entry}": tag_of(entry) for entry in manifest.modulepath}
    locked = lock.pins
    for name in sorted({*modules, *tags, *locked}):
        module, tag, pin = modules.get(name), tags.get(name), locked.get(name)
        if pin is not None and (
            pin.is_tag and pin.name == tag if tag else module and module.fits(pin)
        ):
            continue
        wish = tag or (module.wish if module else "nothing")
        raise InvalidInputError(
            f"manifest and lock disagree: the manifest has {wish},"
            f" the lock has {pin.name if pin else 'nothing'}",
            where=f"{where}: {name}",
            hint="run 'localpuppet release lock' and commit its result",
        )
    for name, module in manifest.modules.items():
        if lock.modules[name].place != module.place:
            raise InvalidInputError(
                "manifest and lock name different repositories", where=f"{where}: modules.{name}"
            )


def to_text(lock: Lock) -> str:
    """Return the text of a lock: YAML, one field a line, in a fixed order."""
    lines = [
        "# Written by 'localpuppet release lock'; commit it beside manifest.yaml.",
        f"version: {VERSION}",
    ]
    for kind, pins in lock.to_dict().items():
        if not isinstance(pins, dict) or not pins:
            continue
        lines.append(f"{kind}:")
        for name, pin in pins.items():
            if isinstance(pin, str):
                lines.append(f"  {name}: {json.dumps(pin)}")
                continue
            lines.append(f"  {name}:")
            lines += [f"    {field}: {json.dumps(value)}" for field, value in pin.items()]
    return "\n".join(lines) + "\n"


class ReleaseFiles(Value):
    """Reads manifests and locks, and with `read_enc` the `enc.yaml` of a release."""

    documents: Documents
    allow_file: bool
    tags_only: bool = False
    basemodulepath: tuple[Path, ...] = ()
    read_enc: Callable[[Path, Documents], Any]

    def parse_manifest(self, data: bytes, where: str) -> Manifest:
        """Return the manifest in `data`, without checks that need its release."""
        raw = self.documents.recall(data, schema="manifest")
        if raw is None:
            from localpuppet.base.formats import (
                canonical_yaml,  # its patterns cost 5 ms, where nothing is new
            )

            with suppress(LocalpuppetError, KeyError, TypeError, ValueError, AttributeError):
                text = data.decode("ascii")
                read = canonical_yaml.read(text) or {}
                manifest = Manifest.from_dict(read, allow_file=self.allow_file)
                if manifest.to_text({}) == canonical_yaml.without_comments(text):
                    self.documents.accept(data, read, schema="manifest")
                    return manifest
            raw = self.documents.parse(data, schema="manifest", where=where, may_be_empty=True)
        with errors_at(where, LocalpuppetError):
            return Manifest.from_dict(raw, allow_file=self.allow_file)

    def manifest(
        self, directory: Path, app: ReleasePath = _ITSELF, *, immutable: bool = True
    ) -> Manifest:
        """Return the manifest in a directory, checked against the site's rules.

        A working copy has no name yet. If it must be `immutable`, its collections are tags.
        """
        require_manifest(directory)
        file = directory / MANIFEST
        manifest = self.parse_manifest(_read(file), str(file))
        with errors_at(str(file), LocalpuppetError):
            self._refuse(app, manifest, immutable=immutable)
        return manifest

    def lock(self, directory: Path) -> Lock | None:
        """Return the lock in a directory; `None` without one."""
        file = directory / LOCK
        if not file.exists():
            return None
        return self.parse_lock(_read(file), str(file))

    def locked(self, app: ReleasePath, read: Callable[[str], bytes | None]) -> Lock:
        """Return the lock of a release, checked against its manifest.

        `read` returns the bytes of a file at the top of the release's tree, or `None`.
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
        lock = self.parse_lock(locked, f"{app}/{LOCK}")
        check_complete(manifest, lock, where=str(app))
        return lock

    def pinned(self, directory: Path, manifest: Manifest, *, work_trees: bool = True) -> Lock:
        """Return the lock of mutable code, checked against its manifest.

        It may name work trees of modules on this machine only if its user is the one who wrote it.
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
        """Reject branches if no lock pins their commits."""
        for name, module in manifest.modules.items():
            branch = isinstance(module, GitModule) and module.ref_kind == "branch"
            if branch and not files.is_file(directory / LOCK):
                raise InvalidInputError(
                    f"is a branch, and there is no {LOCK}",
                    where=f"modules.{name}",
                    hint="'localpuppet release lock' says which commit it is",
                )

    def parse_lock(self, data: bytes, where: str) -> Lock:
        """Return the lock in `data`."""
        from localpuppet.base.formats import canonical_yaml

        with suppress(LocalpuppetError, KeyError, TypeError, ValueError, AttributeError):
            text = data.decode("ascii")
            lock = Lock.from_dict(canonical_yaml.read(text) or {}, allow_file=self.allow_file)
            if to_text(lock) == text:
                return lock
        raw = self.documents.parse(data, schema="lock", where=where)
        with errors_at(where, LocalpuppetError):
            return Lock.from_dict(raw, allow_file=self.allow_file)

    def _refuse(self, app: ReleasePath, manifest: Manifest, *, immutable: bool) -> None:
        check_modulepath(app, manifest, tags_only=immutable)
        if self.tags_only:
            refuse_untagged(manifest, because=_SITE_SAYS)


def _read(file: Path) -> bytes:
    """Return the bytes of a file; if others could write it, name all such files beside it."""
    try:
        return files.read_user_file(file)
    except files.ForeignFileError:
        files.refuse_foreign_directory(file.parent)
        raise
