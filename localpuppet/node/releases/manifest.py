"""`manifest.yaml` of a release, and `manifest.lock`: what every name in it resolved to.

Rules between entries: a limited number, no duplicates, one release of a source, nothing mutable
where the site forbids it.

A lock is the trust anchor of a release: the commit or the archive's digest, and the SHA-256 of the
tree's bytes decide; a tag, branch or version is only a name.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, field
from typing import Any, cast

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.formats.values import Json, at
from localpuppet.base.value import Value
from localpuppet.node.releases.git.git_modules import Pin
from localpuppet.node.releases.git.git_names import parse_module_name
from localpuppet.node.releases.limits import MAX_DIRECTORIES, MAX_INNER, refuse_too_many
from localpuppet.node.releases.modules import Module, ModulePin, parse_module, parse_pin

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


def parse_inner_path(text: str, *, where: str) -> str:
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
            sources[_tagged(name, pin)] = pin
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


def _tagged(name: str, pin: Pin) -> ReleasePath:
    path = ReleasePath.parse(name, where="sources")
    if not path.is_tag or path != f"{path.source}/tags/{pin.tag}":
        raise InvalidInputError(
            f"{name!r} is not the tag {pin.tag!r} of a source", where=at("sources", name)
        )
    return path
