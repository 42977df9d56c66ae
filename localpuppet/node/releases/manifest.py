"""`manifest.yaml` of a release, and `manifest.lock`: what every name in it resolved to.

Rules between entries: a limited number, no duplicates, one release of a source, nothing mutable
where the site forbids it.

A lock is the trust anchor of a release: the commit or the archive's digest, and the SHA-256 of the
tree's bytes decide; a tag, branch or version is only a name.

`ReleaseFiles` reads both by the site's settings.
"""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, field
from pathlib import Path
from typing import Any, cast

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, errors_at
from localpuppet.base.formats.documents import Documents
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.formats.values import Json, at
from localpuppet.base.machine import files
from localpuppet.base.value import Value
from localpuppet.node.releases.git.git_modules import GitModule, Pin
from localpuppet.node.releases.git.git_names import parse_module_name
from localpuppet.node.releases.limits import MAX_DIRECTORIES, MAX_INNER, refuse_too_many
from localpuppet.node.releases.modules import Module, ModulePin, parse_module, parse_pin
from localpuppet.node.releases.source import tag_of

_PART = r"(?!-)[A-Za-z0-9_.+-]+\Z"


class Manifest(Value):
    """The dependencies of a release, besides its own modules.

    Attributes:
        moduledir: The directory of single modules inside the release; empty for its top. If set,
            the release is a control repository and its `environment.conf` applies.
        site_manifest: Its own site manifest, a file or directory inside the release; empty for the
            one in `environment.conf`, or the root's.
        tags_only: Whether everything must be a tag: no commit, branch or other module.
    """

    modulepath: tuple[ReleasePath, ...]
    modules: Mapping[str, Module]
    moduledir: str = ""
    site_manifest: str = ""
    tags_only: bool = False

    @classmethod
    def from_dict(cls, raw: Mapping[str, Json], *, allow_file: bool = False) -> "Manifest":
        """Return the manifest in `raw`, every key optional; see `parse_module`.

        `{"modulepath": ["dist/tags/r7", …], "modules": {name: module}, "moduledir": path,
        "site_manifest": path, "tags_only": bool}`
        """
        entries = cast("list[str]", raw.get("modulepath", []))
        modules = cast("dict[str, dict[str, str]]", raw.get("modules", {}))
        refuse_too_many(len(modules), where="modules")
        manifest = cls(
            modulepath=tuple(
                ReleasePath.parse(entry, where=f"modulepath[{index}]")
                for index, entry in enumerate(entries)
            ),
            modules={
                parse_module_name(name, where="modules"): parse_module(
                    name, module, where=f"modules.{name}", allow_file=allow_file
                )
                for name, module in modules.items()
            },
            moduledir=parse_inner_path(str(raw.get("moduledir", "")), where="moduledir"),
            site_manifest=parse_inner_path(
                str(raw.get("site_manifest", "")), where="site_manifest"
            ),
            tags_only=bool(raw.get("tags_only", False)),
        )
        if manifest.tags_only:
            refuse_untagged(manifest, because="the manifest says tags_only")
        return manifest

    def to_text(self, comments: Mapping[str, str]) -> str:
        """Return the manifest as `manifest.yaml` has it, one field a line.

        A comment is above its module, or with the key `""` above the whole file.
        """
        lines = _comment(comments.get("", ""), "")
        if self.tags_only:
            lines.append("tags_only: true")
        if self.moduledir:
            lines.append(f"moduledir: {json.dumps(self.moduledir)}")
        if self.site_manifest:
            lines.append(f"site_manifest: {json.dumps(self.site_manifest)}")
        if self.modulepath:
            lines += ["modulepath:", *(f"  - {json.dumps(entry)}" for entry in self.modulepath)]
        lines.append("modules:" if self.modules else "modules: {}")
        for name, module in self.modules.items():
            lines += _comment(comments.get(name, ""), "  ")
            lines.append(f"  {name}:")
            lines += [f"    {key}: {json.dumps(value)}" for key, value in module.fields.items()]
        return "\n".join(lines) + "\n"


def _comment(text: str, indent: str) -> list[str]:
    return [f"{indent}# {line}".rstrip() for line in text.splitlines()]


def parse_inner_path(text: str, *, where: str = "") -> str:
    """Return the path of a directory or file inside a release; empty for its top.

    Raises:
        InvalidInputError: The path is absolute, leaves the release, or has forbidden characters.
    """
    if text in ("", "."):
        return ""
    path = text.removeprefix("./").rstrip("/")
    parts = path.split("/")
    if len(path) > MAX_INNER or not all(re.match(_PART, part) and part != ".." for part in parts):
        raise InvalidInputError(
            f"{text[:60]!r} is not a path inside the release",
            where=where,
            hint="a relative path of letters, digits and _ . + -",
        )
    return path


def refuse_untagged(manifest: Manifest, *, because: str) -> None:
    """Reject single modules that are not tags."""
    for name, module in manifest.modules.items():
        if not module.is_tag:
            raise InvalidInputError(
                f"is not a tag of a repository, and {because}",
                where=f"modules.{name}",
                hint="write {git: URL, tag: TAG}",
            )


def check_modulepath(app: ReleasePath, manifest: Manifest, *, tags_only: bool) -> None:
    """Reject directories that must not share a modulepath.

    `tags_only` if the site sets `immutable_only`, or the release is locked.
    """
    count = 1 + len(manifest.modulepath)
    if count > MAX_DIRECTORIES:
        raise InvalidInputError(
            f"has too many directories: {count} with the app itself, at most {MAX_DIRECTORIES}",
            where="modulepath",
        )
    releases = {app.source: app}
    for index, entry in enumerate(manifest.modulepath):
        where = f"modulepath[{index}]"
        if entry == app:
            raise InvalidInputError(
                f"lists the release itself, {entry}", where=where, hint="remove the entry"
            )
        if entry in manifest.modulepath[:index]:
            raise InvalidInputError(f"lists {entry} twice", where=where)
        other = releases.setdefault(entry.source, entry)
        if other != entry:
            raise InvalidInputError(
                f"{entry} and {other} are two releases of one source",
                where=where,
                hint="keep one of them",
            )
        if tags_only and not entry.is_tag:
            raise InvalidInputError(
                f"{entry} is mutable, and a release may depend on tags only",
                where=where,
                hint="name a tag of it, such as NAME/tags/r1",
            )


VERSION = 1


class Lock(Value):
    """Every pin of a release.

    Attributes:
        sources: Entries of the modulepath (`dist/tags/r7`) by name.
        paths: Work trees that replace single modules on the maker's machine: absolute directories
            by name. The lock of a release has none.
    """

    modules: Mapping[str, ModulePin]
    sources: Mapping[ReleasePath, Pin]
    paths: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Json], *, allow_file: bool) -> "Lock":
        """Return the lock in `raw`, which is shape-checked.

        `{"version": 1, "modules": {name: pin}, "sources": {path: pin}, "paths": {name: directory}}`
        """
        if raw["version"] != VERSION:
            raise InvalidInputError(
                f"version {raw['version']} is not known to this localpuppet",
                where="version",
                hint=f"it reads version {VERSION}; lock again: 'localpuppet release lock'",
            )
        bodies = {
            kind: cast("dict[str, dict[str, Json]]", raw.get(kind) or {})
            for kind in ("modules", "sources")
        }
        refuse_too_many(sum(map(len, bodies.values())), where="modules")
        modules = {
            parse_module_name(name, where="modules"): parse_pin(
                body, where=at("modules", name), allow_file=allow_file
            )
            for name, body in bodies["modules"].items()
        }
        sources: dict[ReleasePath, Pin] = {}
        for name, body in bodies["sources"].items():
            pin = parse_pin(body, where=at("sources", name), allow_file=allow_file)
            if not isinstance(pin, Pin):
                raise InvalidInputError("is not a tag", where=at("sources", name))
            path = ReleasePath.parse(name, where="sources")
            if not path.is_tag or path != f"{path.source}/tags/{pin.tag}":
                raise InvalidInputError(
                    f"{name!r} is not the tag {pin.tag!r} of a source", where=at("sources", name)
                )
            sources[path] = pin
        paths = cast("dict[str, str]", raw.get("paths") or {})
        for name, directory in paths.items():
            if name not in modules or not directory.startswith("/"):
                raise InvalidInputError(
                    "is not the work tree of a locked module", where=at("paths", name)
                )
        return cls(modules=modules, sources=sources, paths=paths)

    @property
    def trees(self) -> dict[str, str]:
        """The trees of single modules by name: a digest, or the directory of a work tree."""
        return {name: pin.tree_sha256 for name, pin in self.modules.items()} | dict(self.paths)

    @property
    def pins(self) -> dict[str, ModulePin]:
        """Every pin by its key: `modules.ntp`, `sources.dist/tags/r7`."""
        modules = {f"modules.{name}": pin for name, pin in self.modules.items()}
        return modules | {f"sources.{name}": pin for name, pin in self.sources.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return the form of the file, in a fixed order."""
        return {
            "version": VERSION,
            "modules": {name: _fields(self.modules[name]) for name in sorted(self.modules)},
            "sources": {name: _fields(self.sources[name]) for name in sorted(self.sources)},
            **({"paths": dict(sorted(self.paths.items()))} if self.paths else {}),
        }


def _fields(pin: ModulePin) -> dict[str, str]:
    """Return the fields of a pin that have a value, in the order of the file."""
    return {name: value for name, value in asdict(pin).items() if value}


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
        if (raw := self.documents.recall(data, schema="manifest")) is None:
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
        if (data := read(MANIFEST)) is None:
            raise InvalidInputError(f"there is no {MANIFEST}", where=app, hint=CREATE_MANIFEST)
        manifest = self.parse_manifest(data, f"{app}/{MANIFEST}")
        self._refuse(app, manifest, immutable=True)
        if (locked := read(LOCK)) is None:
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
        if (lock := self.lock(directory)) is None:
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
