"""`manifest.lock`: what every tag of a manifest resolved to.

Owns: format version 1, field by field, as the design fixes it. Refuses to know: git. A lock is the
trust anchor of a release: the commit and our own SHA-256 of the bytes decide, a tag is a name.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

from localpuppet.errors import InvalidInputError
from localpuppet.formats.names import ReleasePath
from localpuppet.formats.values import Json, at
from localpuppet.releases.git.names import (
    GitUrl,
    Tag,
    parse_digest,
    parse_module_name,
    parse_object_id,
)

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One thing that is locked.

    Attributes:
        url: The repository.
        tag: The tag that was asked for.
        tag_object: What `refs/tags/TAG` points at: the id of the tag object, or of the commit when
            the tag is a lightweight one.
        commit: The commit behind it.
        tree_sha256: Digest of the tree's bytes (docs/tree-digest.md).
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
            InvalidInputError: A field is refused.
        """
        text = cast("Mapping[str, str]", raw)
        return cls(
            url=GitUrl.parse(text["url"], where=at(where, "url"), allow_file=allow_file),
            tag=Tag.parse(text["tag"], where=at(where, "tag")),
            tag_object=parse_object_id(text["tag_object"], where=at(where, "tag_object")),
            commit=parse_object_id(text["commit"], where=at(where, "commit")),
            tree_sha256=parse_digest(text["tree_sha256"], where=at(where, "tree_sha256")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """Every pin of a release.

    Attributes:
        modules: Single modules by name.
        sources: Entries of the modulepath (`dist/tags/r7`) by name.
    """

    modules: Mapping[str, Pin]
    sources: Mapping[ReleasePath, Pin]

    @classmethod
    def from_dict(cls, raw: Mapping[str, Json], *, allow_file: bool) -> "Lock":
        """Return the lock.

        Args:
            raw: `{"version": 1, "modules": {name: pin}, "sources": {path: pin}}`, shape-checked.
            allow_file: Whether `file://` URLs are allowed.

        Raises:
            InvalidInputError: Another version, or a field is refused.
        """
        if raw["version"] != VERSION:
            raise InvalidInputError(
                f"version {raw['version']} is not known to this localpuppet",
                where="version",
                hint=f"it reads version {VERSION}",
            )
        pins = {
            kind: {
                name: Pin.from_dict(pin, where=at(kind, name), allow_file=allow_file)
                for name, pin in cast("dict[str, dict[str, Json]]", raw.get(kind) or {}).items()
            }
            for kind in ("modules", "sources")
        }
        return cls(
            modules={
                parse_module_name(name, where="modules"): pin
                for name, pin in pins["modules"].items()
            },
            sources={_tagged(name, pin): pin for name, pin in pins["sources"].items()},
        )

    @property
    def pins(self) -> dict[str, Pin]:
        """Every pin by its place: `modules.ntp`, `sources.dist/tags/r7`."""
        modules = {f"modules.{name}": pin for name, pin in self.modules.items()}
        return modules | {f"sources.{name}": pin for name, pin in self.sources.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return the form that is written, in a fixed order."""
        return {
            "version": VERSION,
            "modules": {name: asdict(self.modules[name]) for name in sorted(self.modules)},
            "sources": {name: asdict(self.sources[name]) for name in sorted(self.sources)},
        }


def _tagged(name: str, pin: Pin) -> ReleasePath:
    path = ReleasePath.parse(name, where="sources")
    if not path.is_tag or path != f"{path.source}/tags/{pin.tag}":
        raise InvalidInputError(
            f"{name!r} is not the tag {pin.tag!r} of a source", where=at("sources", name)
        )
    return path
