"""Sealed values in git: of the newest verified release, of both sides of a merge, of the past."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from operator import itemgetter
from pathlib import Path

from localpuppet.base.errors import IntegrityError, InvalidInputError, LocalpuppetError
from localpuppet.base.formats.names import suggest
from localpuppet.base.value import Value
from localpuppet.node.releases.git.git_names import judge
from localpuppet.node.releases.git.program import GitProgram
from localpuppet.node.releases.git.signatures import judged, people, pinned
from localpuppet.node.releases.source import ReleaseSource, refuse_other_source
from localpuppet.node.sealed.sealed_files import SealedGroup, SealedValue
from localpuppet.node.sealed.tree import PREFIX, SealedTree
from localpuppet.node.sealed.trust import is_step

# Signed tags that are looked at until one verifies.
MAX_TAGS = 200
UNCUT = "git fetch --unshallow"
_FILE = re.compile(rf"{PREFIX}/((groups|values)/(.+)\.yaml)\Z")


class LastRelease(Value):
    """The newest release whose tag verifies, in a clone."""

    tag: str
    commit: str


class PastSealed(Value):
    """Groups and values that were in a clone, without damaged ones.

    `is_cut` if the clone has only a part of the history.
    """

    groups: tuple[SealedGroup, ...] = ()
    values: tuple[SealedValue, ...] = ()
    is_cut: bool = False

    def serials(self, released: Callable[[str], int]) -> dict[str, int]:
        """Return the highest serial that each group had, without those that a release refuses.

        `released` returns the serial of a group in the newest release; 0 for a new one.
        """
        return _highest(
            (one.name, one.serial) for one in self.groups if is_step(one.serial, released(one.name))
        )

    def numbers(self, released: Callable[[str], int]) -> dict[str, int]:
        """Return the highest number that each value had, by path; see `serials`."""
        return _highest(
            (one.path, one.number)
            for one in self.values
            if is_step(one.number, released(one.path) or one.number)
        )


def _highest(numbers: Iterable[tuple[str, int]]) -> dict[str, int]:
    return dict(sorted(numbers, key=itemgetter(1)))


class SealedRepository:
    """The git repository around a work tree; git does not use its configuration."""

    def __init__(self, program: GitProgram, directory: Path) -> None:
        self._program = program
        self._top = directory.resolve()

    def _git(self, *arguments: str) -> bytes:
        where = str(self._top)
        return self._program.run(
            self._top / ".git",
            *arguments,
            cwd=self._top,
            failure=lambda text: InvalidInputError(f"git {arguments[0]}: {text}", where=where),
        )

    @cached_property
    def origin(self) -> str:
        """The URL of origin; empty without one."""
        try:
            return self._git("config", "--get", "remote.origin.url").decode().strip()
        except InvalidInputError:
            return ""

    def source(self, sources: Mapping[str, ReleaseSource]) -> ReleaseSource | None:
        """Return the source with the URL of origin; `None` unless it is exactly one."""
        same = [source for source in sources.values() if source.url == self.origin]
        return same[0] if len(same) == 1 else None

    def last_release(self, source: ReleaseSource | None) -> LastRelease | None:
        """Return the newest tag that a source's signers signed; `None` if none verifies.

        Raises:
            IntegrityError: None of the newest signed tags verifies: false ones may hide it.
        """
        if source is None or source.signers is None:
            return None
        signed = "%(if)%(contents:signature)%(then)%(objectname) %(refname:strip=2)%(end)"
        listed = self._git(
            "for-each-ref", "--sort=-creatordate", f"--format={signed}", "refs/tags/"
        )
        lines = [*filter(None, listed.decode("utf-8", "replace").splitlines())]
        for line in lines[:MAX_TAGS]:
            name, _, tag = line.partition(" ")
            try:
                return LastRelease(tag=tag, commit=self._verified(source, name, tag))
            except (IntegrityError, InvalidInputError):
                continue
        if len(lines) > MAX_TAGS:
            raise IntegrityError(
                f"none of the newest {MAX_TAGS} signed tags verifies",
                where=f"{self._top}: tags",
                hint=f"remove false ones, and see the signers of the source {source.name}",
            )
        return None

    def _verified(self, source: ReleaseSource, name: str, tag: str) -> str:
        """Return the commit of a tag that the source's signers signed."""
        where, place = f"tag {tag}", self._top / ".git"
        objects = self._program.objects(place, [name, f"{name}^{{commit}}", f"{name}^{{tree}}"])
        tag_object = judge(tag, name, *objects, where=where)
        if source.signers is None or not tag_object.annotated:
            raise IntegrityError("is not signed", where=where)
        with pinned(self._program, source.signers) as keys:
            signers = [keys.verify(place, name, where=where)]
        refuse_other_source(source, tag_object, where=where)
        if source.signatures > 1:
            others = judged(
                self._program,
                place,
                tag_object,
                tag=tag,
                signers=source.signers,
                source=source.name,
            )
            signers += [one.signer for one in others if one.signer is not None]
        if len(people(signers)) < source.signatures:
            raise IntegrityError("has too few signatures", where=where)
        return tag_object.commit

    def tree_of(self, commit: str) -> SealedTree:
        """Return the sealed values of a commit."""
        listed = self._git("ls-tree", "-r", "-z", "--full-tree", commit, f"{PREFIX}/").decode()
        blobs = {}
        for line in filter(None, listed.split("\0")):
            about, _, path = line.partition("\t")
            if about.startswith("100"):
                blobs[path.removeprefix(f"{PREFIX}/")] = about.split()[2]
        return SealedTree.of_files(_Blobs(self._program, self._top / ".git", blobs))

    def conflicts(self) -> tuple[str, ...]:
        """Return the groups in which git has a conflict, sorted."""
        listed = self._git("diff", "--name-only", "--diff-filter=U", "-z", "--", PREFIX).decode()
        matches = filter(None, map(_FILE.match, listed.split("\0")))
        return tuple(sorted(match[3] for match in matches if match[2] == "groups"))

    def sides(self, name: str) -> list[SealedGroup]:
        """Return a group as the common ancestor, this branch and the other one have it."""
        path = f"{PREFIX}/groups/{name}.yaml"
        files = self._program.objects(
            self._top / ".git", [f":{stage}:{path}" for stage in (1, 2, 3)]
        )
        if files[1] is None or files[2] is None:
            raise InvalidInputError("git has no conflict in it", where=path)
        ours = SealedGroup.parse(files[1][2], name=name)
        base = (
            SealedGroup.parse(files[0][2], name=name)
            if files[0]
            else ours.without({one for member in ours.everybody for one in member.names})
        )
        return [base, ours, SealedGroup.parse(files[2][2], name=name)]

    def authors(self, since: str) -> dict[str, str]:
        """Return `COMMIT AUTHOR` of the last change of each file in `sealed/` since a commit."""
        listed = self._git(
            "log", "-z", "--format=%x01%h %an", "--name-only", f"{since}..HEAD", "--", PREFIX
        ).decode("utf-8", "replace")
        authors: dict[str, str] = {}
        # A name may have control characters, but no NUL, which ends each entry.
        for entry in re.split(r"(?:^|\0)\x01", listed)[1:]:
            author, *paths = entry.replace("\n", "\0").split("\0")
            for path in filter(None, paths):
                authors.setdefault(path, author)
        return authors

    def past(self, *paths: str, since: str = "") -> PastSealed:
        """Return groups and values in the history of HEAD, without that of the commit `since`.

        `paths` are files and directories below `sealed`; all if none is named.
        """
        try:
            self._git("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
        except InvalidInputError:
            return PastSealed()  # nothing is committed
        shown = ("--raw", "--no-abbrev", "--no-renames", "-m", "--format=", "-z")
        where = [f":(top,literal){PREFIX}/{path}" for path in paths] or [PREFIX]
        listed = self._git("log", *shown, f"{since}..HEAD" if since else "HEAD", "--", *where)
        words = listed.decode("utf-8", "replace").replace("\n", "").split("\0")
        names = {
            (about.split()[3], match[2], match[3])
            for about, path in zip(words[::2], words[1::2], strict=False)
            if (match := _FILE.match(path)) and not about.split()[3].startswith("0000000")
        }
        groups, values = [], []
        files = (
            self._program.objects(self._top / ".git", [blob for blob, _, _ in names])
            if names
            else []
        )
        for (_, kind, name), file in zip(names, files, strict=True):
            try:
                if file is not None and kind == "groups":
                    groups.append(SealedGroup.parse(file[2], name=name))
                elif file is not None:
                    values.append(SealedValue.parse(file[2], path=name))
            except LocalpuppetError:
                continue  # git's marks in a merge, say
        is_cut = self._git("rev-parse", "--is-shallow-repository").strip() == b"true"
        return PastSealed(groups=tuple(groups), values=tuple(values), is_cut=is_cut)


class _Blobs(Mapping[str, bytes]):
    """Files of a commit: the first one is read alone, a second one together with all others."""

    def __init__(self, program: GitProgram, repository: Path, blobs: Mapping[str, str]) -> None:
        self._program, self._repository, self._blobs = program, repository, blobs
        self._read: dict[str, bytes] = {}

    def __getitem__(self, name: str) -> bytes:
        if name not in self._read:
            wanted = [*self._blobs] if self._read else [name]
            objects = self._program.objects(self._repository, [self._blobs[one] for one in wanted])
            self._read |= {one: file[2] for one, file in zip(wanted, objects, strict=True) if file}
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._blobs)

    def __len__(self) -> int:
        return len(self._blobs)


def exposed(current: SealedTree, past: PastSealed, *, name: str, operator: bool) -> dict[str, bool]:
    """Return what a node or an operator could ever open → whether that content is still in use.

    `current` has the values as they are now, `past` is what `SealedRepository.past` returns.
    """
    if past.is_cut:
        raise InvalidInputError("has only a part of the history", hint=UNCUT)
    groups: dict[str, set[tuple[str, int]]] = {}
    for group in (*past.groups, *current.groups()):
        for member in group.operators if operator else group.members:
            for one in member.names:
                groups.setdefault(one, set()).add((group.name, group.serial))
    if name not in groups:
        longer = [one for one in sorted(groups) if one.startswith(f"{name}.")]
        hint = f"did you mean {longer[0]!r}?" if longer else suggest(name, [*groups], most=1)
        raise InvalidInputError(
            f"{name} was never in a group", hint=hint or "see 'localpuppet sealed list'"
        )
    numbers: dict[str, int] = {}
    for value in (*past.values, *current.values()):
        if (value.group, value.serial) in groups[name]:
            numbers[value.path] = max(value.number, numbers.get(value.path, 0))
    now = {value.path: value.number for value in current.values()}
    return {path: now.get(path) == number for path, number in sorted(numbers.items())}
