"""`manifest.yaml` of a release, and which directories make up a modulepath.

Owns: the rules between entries (how many, none twice, one release of a source, nothing mutable
where that is forbidden). Refuses to know: the disk.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from localpuppet.errors import InvalidInputError
from localpuppet.formats.names import ReleasePath
from localpuppet.formats.values import Json
from localpuppet.releases.git.names import GitUrl, Tag, parse_module_name

MAX_DIRECTORIES = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Tagged:
    """A repository at a tag."""

    url: GitUrl
    tag: Tag


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a release needs beside its own modules.

    Attributes:
        modulepath: Collections, in modulepath order.
        modules: Single modules by name, each at a tag of a repository.
    """

    modulepath: tuple[ReleasePath, ...]
    modules: Mapping[str, Tagged]

    @classmethod
    def from_dict(cls, raw: Mapping[str, Json], *, allow_file: bool = False) -> "Manifest":
        """Return the manifest.

        Args:
            raw: `{"modulepath": ["dist/tags/r7", …], "modules": {name: {"git": url, "tag": tag}}}`,
                both keys optional.
            allow_file: Whether `file://` URLs are allowed.

        Raises:
            InvalidInputError: A path, name, URL or tag is outside its grammar.
        """
        entries = cast("list[str]", raw.get("modulepath", []))
        modules = cast("dict[str, dict[str, str]]", raw.get("modules", {}))
        return cls(
            modulepath=tuple(
                ReleasePath.parse(entry, where=f"modulepath[{index}]")
                for index, entry in enumerate(entries)
            ),
            modules={
                parse_module_name(name, where="modules"): Tagged(
                    url=GitUrl.parse(
                        module["git"], where=f"modules.{name}.git", allow_file=allow_file
                    ),
                    tag=Tag.parse(module["tag"], where=f"modules.{name}.tag"),
                )
                for name, module in modules.items()
            },
        )

    def to_text(self, comments: Mapping[str, str]) -> str:
        """Return the manifest as `manifest.yaml` has it, one field a line.

        Args:
            comments: Module → what to say above it.
        """
        lines = []
        if self.modulepath:
            lines += ["modulepath:", *(f"  - {json.dumps(entry)}" for entry in self.modulepath)]
        lines.append("modules:" if self.modules else "modules: {}")
        for name, module in self.modules.items():
            if name in comments:
                lines.append(f"  # {comments[name]}")
            lines.append(f"  {name}:")
            lines += [f"    git: {json.dumps(module.url)}", f"    tag: {json.dumps(module.tag)}"]
        return "\n".join(lines) + "\n"


def check_modulepath(app: ReleasePath, manifest: Manifest, *, tags_only: bool) -> None:
    """Refuse what must not stand together on one modulepath.

    Args:
        app: The release that the manifest belongs to.
        manifest: Its manifest.
        tags_only: Refuse everything that is not a tag: the site says `immutable_only`, or the
            release is locked.

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
            raise InvalidInputError(f"lists the app itself again ({entry})", where=where)
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
                f"{entry} is mutable, and a release must depend on tags only",
                where=where,
                hint="name a tag of it, such as NAME/tags/r1",
            )
