"""`manifest.lock`: what every name in a manifest resolved to.

A lock is the trust anchor of a release: the commit or the archive's digest, and the SHA-256 of the
tree's bytes decide; a tag, branch or version is only a name.
"""

from collections.abc import Mapping
from dataclasses import asdict, field
from typing import TYPE_CHECKING, Any, cast

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.formats.values import Json, at
from localpuppet.base.value import Value
from localpuppet.node.releases.forge.names import Slug
from localpuppet.node.releases.git.names import (
    GitUrl,
    Tag,
    parse_branch,
    parse_digest,
    parse_module_name,
    parse_object_id,
)
from localpuppet.node.releases.limits import refuse_too_many

if TYPE_CHECKING:
    from localpuppet.node.releases.forge.versions import ModuleVersion

VERSION = 1
_FIELDS = {
    "tag": ("url", "tag", "tag_object", "commit", "tree_sha256"),
    "commit": ("url", "commit", "tree_sha256"),
    "archive": ("forge", "version", "archive_sha256", "tree_sha256"),
}


class Pin(Value):
    """A tag that is locked.

    Attributes:
        url: The repository.
        tag: The requested tag.
        tag_object: The id of the tag object, or of the commit for a lightweight tag.
        commit: The commit behind it.
        tree_sha256: Digest of the tree's bytes (docs/reference/tree-digest.md).
    """

    url: GitUrl
    tag: Tag
    tag_object: str
    commit: str
    tree_sha256: str

    @classmethod
    def from_dict(cls, raw: Mapping[str, Json], *, where: str, allow_file: bool) -> "Pin":
        """Return the pin.

        Raises:
            InvalidInputError: A field is invalid.
        """
        text = cast("Mapping[str, str]", raw)
        return cls(
            url=GitUrl.parse(text["url"], where=at(where, "url"), allow_file=allow_file),
            tag=Tag.parse(text["tag"], where=at(where, "tag")),
            tag_object=parse_object_id(text["tag_object"], where=at(where, "tag_object")),
            commit=parse_object_id(text["commit"], where=at(where, "commit")),
            tree_sha256=parse_digest(text["tree_sha256"], where=at(where, "tree_sha256")),
        )

    @property
    def name(self) -> str:
        """The version's name in the manifest."""
        return self.tag

    @property
    def short(self) -> str:
        """A short form for people."""
        return self.commit[:12]


class CommitPin(Value):
    """A commit that is locked.

    Attributes:
        url: The repository.
        branch: The branch that the manifest named; empty if it named the commit.
        commit: The commit.
        tree_sha256: Digest of the tree's bytes (docs/reference/tree-digest.md).
    """

    url: GitUrl
    branch: str
    commit: str
    tree_sha256: str

    @property
    def name(self) -> str:
        """The version's name in the manifest."""
        return self.branch or self.commit[:12]

    @property
    def short(self) -> str:
        """A short form for people."""
        return self.commit[:12]


class ForgePin(Value):
    """A locked version of a Forge module; all mirrors of a forge have the same bytes.

    Attributes:
        forge: OWNER/NAME.
        version: The version.
        archive_sha256: Digest of the archive, as the Forge reports it.
        tree_sha256: Digest of the tree's bytes (docs/reference/tree-digest.md).
    """

    forge: Slug
    version: "ModuleVersion"
    archive_sha256: str
    tree_sha256: str

    @property
    def name(self) -> str:
        """The version's name in the manifest."""
        return self.version

    @property
    def short(self) -> str:
        """A short form for people."""
        return self.archive_sha256[:12]


AnyPin = Pin | CommitPin | ForgePin


def parse_pin(raw: Mapping[str, Json], *, where: str, allow_file: bool) -> AnyPin:
    """Return a pin of a single module.

    Raises:
        InvalidInputError: Fields are missing, contradictory or invalid.
    """
    text = cast("Mapping[str, str]", raw)
    form = "archive" if "forge" in raw else "tag" if {"tag", "tag_object"} & set(raw) else "commit"
    for name in _FIELDS[form]:
        if name not in raw:
            raise InvalidInputError(
                f"{name!r} is missing", where=where, hint="run 'localpuppet release lock'"
            )
    for name in raw:
        if name not in (*_FIELDS[form], *(("branch",) if form == "commit" else ())):
            raise InvalidInputError(f"{name!r} does not belong to a {form}", where=where)
    if form == "tag":
        return Pin.from_dict(raw, where=where, allow_file=allow_file)
    tree = parse_digest(text["tree_sha256"], where=at(where, "tree_sha256"))
    if form == "archive":
        from localpuppet.node.releases.forge.versions import ModuleVersion

        return ForgePin(
            forge=Slug.parse(text["forge"], where=at(where, "forge")),
            version=ModuleVersion.parse(text["version"], where=at(where, "version")),
            archive_sha256=parse_digest(text["archive_sha256"], where=at(where, "archive_sha256")),
            tree_sha256=tree,
        )
    return CommitPin(
        url=GitUrl.parse(text["url"], where=at(where, "url"), allow_file=allow_file),
        branch=parse_branch(text["branch"], where=at(where, "branch")) if "branch" in raw else "",
        commit=parse_object_id(text["commit"], where=at(where, "commit")),
        tree_sha256=tree,
    )


class Lock(Value):
    """Every pin of a release.

    Attributes:
        modules: Single modules by name.
        sources: Entries of the modulepath (`dist/tags/r7`) by name.
        paths: Work trees that replace single modules on the maker's machine: absolute directories
            by name. The lock of a release has none.
    """

    modules: Mapping[str, AnyPin]
    sources: Mapping[ReleasePath, Pin]
    paths: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Json], *, allow_file: bool) -> "Lock":
        """Return the lock.

        Args:
            raw: `{"version": 1, "modules": {name: pin}, "sources": {path: pin}, "paths": {name:
                directory}}`, shape-checked.
            allow_file: Whether `file://` URLs are allowed.

        Raises:
            InvalidInputError: The lock has another version, or a field is invalid.
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
    def pins(self) -> dict[str, AnyPin]:
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


def _fields(pin: AnyPin) -> dict[str, str]:
    """Return the fields of a pin that have a value, in the order of the file."""
    return {name: value for name, value in asdict(pin).items() if value}


def _tagged(name: str, pin: Pin) -> ReleasePath:
    path = ReleasePath.parse(name, where="sources")
    if not path.is_tag or path != f"{path.source}/tags/{pin.tag}":
        raise InvalidInputError(
            f"{name!r} is not the tag {pin.tag!r} of a source", where=at("sources", name)
        )
    return path
