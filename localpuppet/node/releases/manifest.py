"""`manifest.yaml` of a release: its modulepath and its single modules.

Rules between entries: a limited number, no duplicates, one release of a source, nothing mutable
where the site forbids it.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.formats.values import Json, at
from localpuppet.base.value import Value
from localpuppet.node.releases.forge.names import Slug
from localpuppet.node.releases.git.names import (
    GitUrl,
    Tag,
    parse_branch,
    parse_module_name,
    parse_object_id,
)
from localpuppet.node.releases.limits import refuse_too_many

if TYPE_CHECKING:
    from localpuppet.node.releases.forge.versions import Range


KINDS = ("tag", "commit", "branch")
_PARSERS: dict[str, Callable[..., str]] = {
    "tag": Tag.parse,
    "commit": parse_object_id,
    "branch": parse_branch,
}
MAX_DIRECTORIES = 9
MAX_INNER = 200
_PART = re.compile(r"(?!-)[A-Za-z0-9_.+-]+\Z", re.ASCII)


class GitModule(Value):
    """A repository at a tag, a commit or a branch.

    Attributes:
        url: The repository.
        kind: `tag`, `commit` or `branch`.
        ref: The tag, the full commit id, or the branch.
    """

    url: GitUrl
    kind: str
    ref: str

    @property
    def fields(self) -> dict[str, str]:
        """Its fields in a manifest, in the order of the file."""
        return {"git": self.url, self.kind: self.ref}


class ForgeModule(Value):
    """A module of the Forge.

    Attributes:
        slug: OWNER/NAME.
        version: The range of versions.
    """

    slug: Slug
    version: "Range"

    @property
    def fields(self) -> dict[str, str]:
        """Its fields in a manifest, in the order of the file."""
        return {"forge": self.slug, "version": self.version.text}


Module = GitModule | ForgeModule


def parse_module(name: str, raw: Mapping[str, str], *, where: str, allow_file: bool) -> Module:
    """Return a module of a manifest.

    Args:
        name: Its name in the manifest.
        raw: `{"git": url, "tag": tag}` or `{"forge": slug, "version": range}`, shape-checked.
        where: Its location, for messages.
        allow_file: Whether `file://` URLs are allowed.

    Raises:
        InvalidInputError: Fields are missing, contradictory, or do not match their grammar.
    """
    hint = "{forge: OWNER/NAME, version: V} or {git: URL, tag: TAG | commit: SHA | branch: NAME}"
    if "forge" in raw:
        if set(raw) != {"forge", "version"}:
            raise InvalidInputError("forge and version go together", where=where, hint=hint)
        slug = Slug.parse(raw["forge"], where=at(where, "forge"))
        if slug.module != name:
            raise InvalidInputError(
                f"{slug} is the module {slug.module!r}",
                where=where,
                hint=f"name it so: '{slug.module}: …'",
            )
        from localpuppet.node.releases.forge.versions import Range  # 1 ms that tags need not pay

        version = Range.parse(raw["version"], where=at(where, "version"))
        return ForgeModule(slug=slug, version=version)
    kinds = [kind for kind in KINDS if kind in raw]
    if "git" not in raw:
        raise InvalidInputError("names neither git nor forge", where=where, hint=hint)
    if len(kinds) != 1 or len(raw) != 2:
        raise InvalidInputError("needs one of tag, commit, branch", where=where, hint=hint)
    (kind,) = kinds
    ref = _PARSERS[kind](raw[kind], where=at(where, kind))
    url = GitUrl.parse(raw["git"], where=at(where, "git"), allow_file=allow_file)
    return GitModule(url=url, kind=kind, ref=ref)


class Manifest(Value):
    """The dependencies of a release, besides its own modules.

    Attributes:
        modulepath: Collections, in modulepath order.
        modules: Single modules by name.
        moduledir: The directory of single modules inside the release; empty for its top. If set,
            the release is a control repository and its `environment.conf` applies.
        site_manifest: Its own site manifest, a file or directory inside the release; empty for the
            one in `environment.conf`, or the root's.
        tags_only: Whether everything must be a tag: no commit, branch or module of the Forge.
    """

    modulepath: tuple[ReleasePath, ...]
    modules: Mapping[str, Module]
    moduledir: str = ""
    site_manifest: str = ""
    tags_only: bool = False

    @classmethod
    def from_dict(cls, raw: Mapping[str, Json], *, allow_file: bool = False) -> "Manifest":
        """Return the manifest.

        Args:
            raw: `{"modulepath": ["dist/tags/r7", …], "modules": {name: module}, "moduledir": path,
                "site_manifest": path, "tags_only": bool}`, every key optional; see `parse_module`.
            allow_file: Whether `file://` URLs are allowed.

        Raises:
            InvalidInputError: A path, name, URL or tag does not match its grammar.
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

        Args:
            comments: Module → comment above it, one line or more; key `""` is for the whole file.
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
    if len(path) > MAX_INNER or not all(_PART.match(part) and part != ".." for part in parts):
        raise InvalidInputError(
            f"{text[:60]!r} is not a path inside the release",
            where=where,
            hint="a relative path of letters, digits and _ . + -",
        )
    return path


def refuse_untagged(manifest: Manifest, *, because: str) -> None:
    """Reject single modules that are not tags.

    Args:
        manifest: The manifest.
        because: The rule that requires tags, for the message.

    Raises:
        InvalidInputError: A module is a commit, a branch or of the Forge.
    """
    for name, module in manifest.modules.items():
        if not isinstance(module, GitModule) or module.kind != "tag":
            raise InvalidInputError(
                f"is not a tag of a repository, and {because}",
                where=f"modules.{name}",
                hint="write {git: URL, tag: TAG}",
            )


def check_modulepath(app: ReleasePath, manifest: Manifest, *, tags_only: bool) -> None:
    """Reject directories that must not share a modulepath.

    Args:
        app: The release that the manifest belongs to.
        manifest: Its manifest.
        tags_only: Reject everything but tags: the site sets `immutable_only`, or the release is
            locked.

    Raises:
        InvalidInputError: Too many directories, one twice, the app itself, two releases of one
            source, or something mutable under `tags_only`.
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
