"""A source: a named git repository whose tags are releases, and who may sign them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localpuppet.errors import IntegrityError, InvalidInputError
from localpuppet.formats.names import ReleasePath
from localpuppet.formats.text import one_line
from localpuppet.releases.git.access import NO_ACCESS, GitAccess
from localpuppet.releases.git.names import TRAILER, GitUrl, Tag

if TYPE_CHECKING:
    # Every verb reads the sources; only those that fetch know tags.
    from localpuppet.releases.git.tags import TagObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A source as `localpuppet.yaml` declares it.

    Attributes:
        name: `foo` in `foo/tags/r1`.
        url: Its repository.
        signers: Pinned keys that every tag must be signed with; `None` where none is asked for.
        unnamed_tags: Whether a signed tag may leave open which source it is for.
        access: How its repository is reached.
    """

    name: str
    url: GitUrl
    signers: Path | None
    unnamed_tags: bool = False
    access: GitAccess = NO_ACCESS

    @classmethod
    def from_dict(
        cls, name: str, raw: Mapping[str, Any], *, root: Path, allow_file: bool
    ) -> "Source":
        """Return the source.

        Args:
            name: Its name.
            raw: `{"git": url, "require_signed": bool, "signers": path, "unnamed_tags": "accept"}`
                and the keys of `GitAccess.from_dict`, shape-checked.
            root: What a relative path of `signers` starts at.
            allow_file: Whether `file://` URLs are allowed.

        Raises:
            InvalidInputError: The name or URL is refused, or signatures are asked for without keys.
        """
        where = f"sources.{name}"
        ReleasePath.parse(name, where=where)
        required = raw.get("require_signed", False)
        if required != ("signers" in raw):
            raise InvalidInputError(
                "require_signed: true and signers go together", where=where, hint="name a key file"
            )
        return cls(
            name=name,
            url=GitUrl.parse(raw["git"], where=f"{where}.git", allow_file=allow_file),
            signers=root / raw["signers"] if required else None,
            unnamed_tags=raw.get("unnamed_tags") == "accept",
            access=GitAccess.from_dict(raw, where=where, root=root),
        )


def refuse_other_source(source: Source, tag: "TagObject", *, where: str) -> None:
    """Refuse a tag whose message says that it is for another source than the one that asks.

    Args:
        source: The source; without signers it takes any tag.
        tag: The tag, whose signature was verified.
        where: Its place, for messages.

    Raises:
        IntegrityError: The tag names another source, several, or (unless the source lets that in)
            none.
    """
    if source.signers is None or tag.sources == (source.name,):
        return
    if not tag.sources:
        if source.unnamed_tags:
            return
        raise IntegrityError(
            f"the signed tag does not say which source it is for: {TRAILER}{source.name}",
            where=where,
            hint=f"'release tag --sign --source {source.name}' says that; for older tags the"
            " source needs 'unnamed_tags: accept'",
        )
    said = ", ".join(one_line(name)[:60] for name in tag.sources[:3])
    raise IntegrityError(
        f"the signed tag is for the source {said}, not for {source.name}",
        where=where,
        hint="find out why this repository has it",
    )


def split(path: ReleasePath) -> Tag:
    """Return the tag in the path of a release, `r1` of `foo/tags/r1`.

    Raises:
        InvalidInputError: It is not a tag.
    """
    if not path.is_tag:
        raise InvalidInputError(f"{path} is not a tag", hint="write NAME/tags/TAG")
    return Tag.parse(path.rpartition("/")[2], where=str(path))
