"""A source: a named git repository whose tags are releases, and who may sign them."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localpuppet.base.errors import IntegrityError, InvalidInputError, errors_at
from localpuppet.base.formats.names import ReleasePath, check_known
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.times import parse_duration, show_duration
from localpuppet.base.value import Value
from localpuppet.node.releases.git.access import NO_ACCESS, GitAccess
from localpuppet.node.releases.git.git_names import TRAILER, GitUrl, Tag
from localpuppet.node.releases.limits import MAX_TAG_AHEAD

if TYPE_CHECKING:
    # Every verb reads the sources; only those that fetch know tags.
    from localpuppet.node.releases.git.git_names import TagObject


class ReleaseSource(Value):
    """A source as `localpuppet.yaml` declares it.

    Attributes:
        signers: Pinned keys that must sign every tag.
        signatures: How many people must have signed a tag.
        unnamed_tags: Whether a signed tag may name no source.
        fresh: Maximum age of a tag at installation, in seconds; `None` for no limit.
        commit_url_format: The URL of a commit on the forge, with `{hash}`.
        user_url_format: The URL of an author on the forge, with `{user}`.
    """

    name: str
    url: GitUrl
    signers: Path | None
    signatures: int = 1
    unnamed_tags: bool = False
    access: GitAccess = NO_ACCESS
    fresh: float | None = None
    commit_url_format: str = ""
    user_url_format: str = ""

    @classmethod
    def from_dict(
        cls, name: str, raw: Mapping[str, Any], *, root: Path, allow_file: bool
    ) -> "ReleaseSource":
        """Return the source, with paths relative to a root.

        Args:
            raw: `{"git": url, "require_signed": bool, "signers": path, "signatures": 2,
                "unnamed_tags": "accept", "fresh": "30d"}`, the URLs of the forge and the keys of
                `GitAccess.from_dict`, shape-checked.
        """
        where = f"sources.{name}"
        ReleasePath.parse(name, where=where)
        required = raw.get("require_signed", False)
        if required != ("signers" in raw):
            raise InvalidInputError(
                "require_signed: true and signers go together", where=where, hint="name a key file"
            )
        for key, why in (
            ("fresh", "only a signature proves the time of a tag"),
            ("signatures", "only pinned signers count"),
        ):
            if key in raw and not required:
                raise InvalidInputError(f"{key} needs require_signed: {why}", where=where)
        with errors_at(f"{where}.fresh"):
            fresh = parse_duration(raw["fresh"]) if "fresh" in raw else None
        return cls(
            name=name,
            url=GitUrl.parse(raw["git"], where=f"{where}.git", allow_file=allow_file),
            signers=root / raw["signers"] if required else None,
            signatures=raw.get("signatures", 1),
            unnamed_tags=raw.get("unnamed_tags") == "accept",
            access=GitAccess.from_dict(raw, where=where, root=root),
            fresh=fresh,
            commit_url_format=raw.get("commit_url_format", ""),
            user_url_format=raw.get("user_url_format", ""),
        )


def source_of(app: ReleasePath, sources: Mapping[str, ReleaseSource]) -> ReleaseSource:
    problem = f"{app.source!r} is not a source"
    check_known(app.source, sources, problem, where="localpuppet.yaml: sources")
    return sources[app.source]


def refuse_other_source(source: ReleaseSource, tag: "TagObject", *, where: str) -> None:
    """Reject a tag whose message names another source; without signers any is accepted."""
    if source.signers is None or tag.sources == (source.name,):
        return
    if not tag.sources:
        if source.unnamed_tags:
            return
        raise IntegrityError(
            f"the signed tag does not name its source: {TRAILER}{source.name}",
            where=where,
            hint=f"'release tag --sign --source {source.name}' says that; for older tags the"
            " source needs 'unnamed_tags: accept'",
        )
    listed = ", ".join(one_line(name)[:60] for name in tag.sources[:3])
    raise IntegrityError(
        f"the signed tag is for the source {listed}, not for {source.name}",
        where=where,
        hint="find out why this repository contains it",
    )


def refuse_stale(source: ReleaseSource, tag: "TagObject", *, now: float, where: str) -> None:
    """Reject a release whose tag is too old to be installed; see `ReleaseSource.fresh`."""
    if source.fresh is None:
        return
    if tag.tagged_at is None:
        raise IntegrityError("the tag does not say when it was made", where=where)
    age = now - tag.tagged_at
    if age > source.fresh:
        raise IntegrityError(
            f"was tagged {show_duration(age)} ago, and {source.name} installs what was tagged in"
            f" the last {show_duration(source.fresh)}",
            where=where,
            hint="tag the release again, under its next name, to confirm it",
        )
    if -age > MAX_TAG_AHEAD:
        raise IntegrityError(
            f"has a tag timestamp {show_duration(-age)} from now",
            where=where,
            hint="check the clock of this node",
        )


def tag_of(path: ReleasePath) -> Tag:
    """Return the tag in the path of a release, `r1` of `foo/tags/r1`."""
    if not path.is_tag:
        raise InvalidInputError(f"{path} is not a tag", hint="write NAME/tags/TAG")
    return Tag.parse(path.rpartition("/")[2], where=str(path))
