"""A single module as a manifest names it: from git, or from the Forge.

    ntp:    {git: https://git.example.com/ntp.git, tag: v1}       # or commit: SHA, or branch: NAME
    stdlib: {forge: puppetlabs/stdlib, version: ">= 9.0.0 < 10.0.0"}

`releases.lock` has what the names resolve to.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.values import at
from localpuppet.node.releases.forge.names import Slug
from localpuppet.node.releases.git.names import GitUrl, Tag, parse_branch, parse_object_id

if TYPE_CHECKING:
    from localpuppet.node.releases.forge.versions import Range

KINDS = ("tag", "commit", "branch")


@dataclass(frozen=True, slots=True, kw_only=True)
class GitModule:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgeModule:
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


_PARSERS: dict[str, Callable[..., str]] = {
    "tag": Tag.parse,
    "commit": parse_object_id,
    "branch": parse_branch,
}


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
