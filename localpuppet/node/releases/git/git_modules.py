"""Single modules from git: a repository at a tag, a commit or a branch.

Tags are brought by `releases.fetch`, because a source may require that they are signed.
"""

import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, cast

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.values import Json, at
from localpuppet.node.releases.git.git_names import (
    GitUrl,
    Tag,
    parse_branch,
    parse_digest,
    parse_object_id,
)
from localpuppet.node.releases.modules import (
    GIT,
    Module,
    ModuleAccess,
    ModulePin,
    ModuleSource,
    Trees,
    check_fields,
    register,
)

if TYPE_CHECKING:
    from pathlib import Path

    from localpuppet.node.releases.git.mirrors import Git
    from localpuppet.node.releases.limits import Budget


_PARSERS = {"tag": Tag.parse, "commit": parse_object_id, "branch": parse_branch}
_HOST = (
    r"(?P<repository>https://(?:github\.com|codeberg\.org|gitea\.[^/]+|(?P<gitlab>gitlab\.[^/]+))"
    r"/[^?#]+?)(?:\.git)?/?\Z"
)
_NUMBERS = r"(?ai:(?:[a-z]+[-_]?)?(\d+(?:\.\d+)*)\Z)"


class GitModule(Module):
    """A repository at a `tag`, a full `commit` id or a `branch`."""

    kind: ClassVar = GIT
    url: GitUrl
    ref_kind: str
    ref: str

    @property
    def fields(self) -> dict[str, str]:
        return {"git": self.url, self.ref_kind: self.ref}

    @property
    def place(self) -> str:
        return self.url

    @property
    def is_tag(self) -> bool:
        return self.ref_kind == "tag"

    @property
    def wish(self) -> str:
        return self.ref if self.is_tag else f"the {self.ref_kind} {self.ref}"

    def fits(self, pin: ModulePin) -> bool:
        """See `Module`; repositories are not compared."""
        return isinstance(pin, GitPin) and pin.asked == (self.ref_kind, self.ref)

    def draft(self) -> "CommitPin | None":
        if self.ref_kind != "commit":
            return None
        return CommitPin(url=self.url, branch="", commit=self.ref, tree_sha256="")


class GitPin(ModulePin):
    """A locked commit of a repository."""

    kind: ClassVar = GIT
    cure: ClassVar = "its repository in 'sources'"
    if TYPE_CHECKING:
        url: GitUrl
        commit: str

    @property
    def asked(self) -> tuple[str, str]:
        """The kind and the name of the ref that the manifest named."""
        raise NotImplementedError

    @property
    def place(self) -> str:
        """See `ModulePin`."""
        return self.url

    @property
    def short(self) -> str:
        """See `ModulePin`."""
        return self.commit[:12]

    def changes(self, old: ModulePin) -> str:
        """See `ModulePin`; GitHub, GitLab, Gitea and Codeberg compare commits."""
        host = re.match(_HOST, self.url)
        if not isinstance(old, GitPin) or old.url != self.url or host is None:
            return ""
        way = "/-/compare/" if host["gitlab"] else "/compare/"
        return f"{host['repository']}{way}{old.short}...{self.short}"

    def newer(self, refs: Mapping[str, str]) -> str:
        """Return the newer tag, or the newer commit of the branch, or empty."""
        raise NotImplementedError


class Pin(GitPin):
    """A tag that is locked: the tag object, or the commit of a lightweight tag."""

    is_tag: ClassVar = True
    url: GitUrl
    tag: Tag
    tag_object: str
    commit: str
    tree_sha256: str

    @classmethod
    def from_dict(cls, raw: Mapping[str, Json], *, where: str, allow_file: bool) -> "Pin":
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
        """See `ModulePin`."""
        return self.tag

    @property
    def asked(self) -> tuple[str, str]:
        """See `GitPin`."""
        return "tag", self.tag

    def newer(self, refs: Mapping[str, str]) -> str:
        """See `GitPin`."""
        here = _numbers(self.tag)
        tags = [name.removeprefix("refs/tags/") for name in refs if name.startswith("refs/tags/")]
        numbered = [(numbers, tag) for tag in tags if (numbers := _numbers(tag))]
        best = max(numbered, default=((), ""))
        return best[1] if here and best[0] > here else ""


class CommitPin(GitPin):
    """A commit that is locked; of a branch, if the manifest named one."""

    url: GitUrl
    branch: str
    commit: str
    tree_sha256: str

    @property
    def name(self) -> str:
        """See `ModulePin`."""
        return self.branch or self.short

    @property
    def label(self) -> str:
        """See `ModulePin`."""
        return f"{self.branch} {self.short}".strip()

    @property
    def asked(self) -> tuple[str, str]:
        """See `GitPin`."""
        return ("branch", self.branch) if self.branch else ("commit", self.commit)

    def bound(self, pin: ModulePin) -> "CommitPin":
        if isinstance(pin, CommitPin) and (pin.url, pin.commit) == (self.url, self.commit):
            return replace(self, tree_sha256=pin.tree_sha256)
        return self

    def unbound(self) -> "CommitPin":
        """See `ModulePin`."""
        return replace(self, tree_sha256="")

    def newer(self, refs: Mapping[str, str]) -> str:
        """See `GitPin`."""
        commit = refs.get(f"refs/heads/{self.branch}", self.commit) if self.branch else self.commit
        return f"{self.branch} {commit[:12]}" if commit != self.commit else ""


def _numbers(tag: str) -> tuple[int, ...]:
    match = re.match(_NUMBERS, tag)
    return tuple(int(number) for number in match[1].split(".")) if match else ()


@register
class GitModules(ModuleSource):
    kind = GIT
    form = "{git: URL, tag: TAG | commit: SHA | branch: NAME}"

    def __init__(self, repository: "Git") -> None:
        self._repository = repository

    @classmethod
    def module(
        cls, name: str, raw: Mapping[str, str], *, where: str, allow_file: bool
    ) -> GitModule:
        """See `ModuleSource`."""
        kinds = [kind for kind in _PARSERS if kind in raw]
        if len(kinds) != 1 or len(raw) != 2:
            raise InvalidInputError("needs one of tag, commit, branch", where=where, hint=cls.form)
        (kind,) = kinds
        ref = _PARSERS[kind](raw[kind], where=at(where, kind))
        url = GitUrl.parse(raw["git"], where=at(where, "git"), allow_file=allow_file)
        return GitModule(url=url, ref_kind=kind, ref=ref)

    @classmethod
    def pin(cls, raw: Mapping[str, Json], *, where: str, allow_file: bool) -> GitPin:
        """See `ModuleSource`."""
        if {"tag", "tag_object"} & set(raw):
            fields = ("url", "tag", "tag_object", "commit", "tree_sha256")
            check_fields(raw, "tag", fields, where=where)
            return Pin.from_dict(raw, where=where, allow_file=allow_file)
        check_fields(raw, "commit", ("url", "commit", "tree_sha256"), "branch", where=where)
        text = cast("Mapping[str, str]", raw)
        return CommitPin(
            url=GitUrl.parse(text["url"], where=at(where, "url"), allow_file=allow_file),
            branch=parse_branch(text["branch"], where=at(where, "branch"))
            if "branch" in raw
            else "",
            commit=parse_object_id(text["commit"], where=at(where, "commit")),
            tree_sha256=parse_digest(text["tree_sha256"], where=at(where, "tree_sha256")),
        )

    @classmethod
    def address(cls, pin: ModulePin, access: ModuleAccess) -> str:
        """See `ModuleSource`."""
        return access.address(pin.place)

    @classmethod
    def open(cls, access: ModuleAccess, repository: object) -> "GitModules":
        """See `ModuleSource`."""
        return cls(cast("Git", repository))

    def resolve(self, modules: Mapping[str, Module]) -> dict[str, ModulePin]:
        """See `ModuleSource`: the commits of branches."""
        branches = {name: m for name, m in modules.items() if isinstance(m, GitModule)}
        refs = self._repository.refs([module.url for module in branches.values()])
        return {
            name: CommitPin(
                url=module.url,
                branch=module.ref,
                commit=head(refs[module.url], module.url, module.ref, where=f"modules.{name}"),
                tree_sha256="",
            )
            for name, module in branches.items()
        }

    def write(self, pins: Mapping[str, ModulePin], directory: "Path", budget: "Budget") -> Trees:
        """See `ModuleSource`: the trees of commits."""
        names = [(pin.place, pin.commit) for pin in pins.values() if isinstance(pin, GitPin)]
        self._repository.fetch_commits(names)
        trees = self._repository.commit_trees(names)
        batch = [(url, trees[url, commit], str(i)) for i, (url, commit) in enumerate(names)]
        keys = list(pins)
        with closing(self._repository.write(batch, directory, budget)) as written:
            for number in written:
                key = keys[int(number)]
                yield key, pins[key], directory / number

    def newer(self, pins: Mapping[str, ModulePin]) -> dict[str, str]:
        """See `ModuleSource`."""
        refs = self._repository.refs([pin.place for pin in pins.values()])
        return {
            key: pin.newer(refs[pin.place]) for key, pin in pins.items() if isinstance(pin, GitPin)
        }


def head(refs: Mapping[str, str], url: str, branch: str, *, where: str) -> str:
    if (commit := refs.get(f"refs/heads/{branch}")) is None:
        raise InvalidInputError(
            f"the repository has no branch {branch!r}",
            where=where,
            hint=f"git ls-remote --heads {url}",
        )
    return commit
