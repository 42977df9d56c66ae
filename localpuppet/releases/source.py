"""A source: a named git repository whose tags are releases, and who may sign them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localpuppet.errors import InvalidInputError
from localpuppet.formats.names import ReleasePath
from localpuppet.releases.git.names import GitUrl, Tag


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A source as `localpuppet.yaml` declares it.

    Attributes:
        name: `foo` in `foo/tags/r1`.
        url: Its repository.
        signers: Pinned keys that every tag must be signed with; `None` where none is asked for.
    """

    name: str
    url: GitUrl
    signers: Path | None

    @classmethod
    def from_dict(
        cls, name: str, raw: Mapping[str, Any], *, root: Path, allow_file: bool
    ) -> "Source":
        """Return the source.

        Args:
            name: Its name.
            raw: `{"git": url, "require_signed": bool, "signers": path}`, shape-checked.
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
        )


def split(path: ReleasePath) -> Tag:
    """Return the tag in the path of a release, `r1` of `foo/tags/r1`.

    Raises:
        InvalidInputError: It is not a tag.
    """
    if not path.is_tag:
        raise InvalidInputError(f"{path} is not a tag", hint="write NAME/tags/TAG")
    return Tag.parse(path.rpartition("/")[2], where=str(path))
