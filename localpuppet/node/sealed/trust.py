"""What vouches for sealed values: verified releases in git, and what a person has approved since.

age does not say who made a file: the author of a pull request can wrap an identity of their own
for an operator. So a group in a work tree proves nothing, also if an operator's key opens it.
What counts is the newest verified release, and what this person has approved since, in a file
outside of the clone. git also knows both sides of a merge, and all groups and values of the past.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Annotated, ClassVar

from localpuppet.base.errors import IntegrityError, InvalidInputError, LocalpuppetError, StateError
from localpuppet.base.formats.converter import AllowedRange, JsonRecord
from localpuppet.base.formats.names import suggest
from localpuppet.base.formats.strict_json import parse_object
from localpuppet.base.machine.files import is_file, make_private, read_secret_file, write_json
from localpuppet.base.value import Value
from localpuppet.node.releases.git.git_names import judge
from localpuppet.node.releases.git.program import GitProgram
from localpuppet.node.releases.git.signatures import judged, people, pinned
from localpuppet.node.releases.source import ReleaseSource, refuse_other_source
from localpuppet.node.sealed.sealed_files import SealedGroup, SealedValue
from localpuppet.node.sealed.tree import PREFIX, SealedTree

MAX_APPROVALS = 32 * 1024 * 1024
# How much a serial or a number may rise from one release to the next.
MAX_STEP = 1000


class Claim(Value):
    """What a group says: its recipient and rule, or one of its holders, with the key."""

    text: str
    key: str


def head_of(group: SealedGroup) -> Claim:
    """Return what a group says of itself."""
    text = f'group {group.name}, rule "{group.rule}", serial {group.serial}: {group.recipient}'
    return Claim(text=text, key=group.recipient)


def holders_of(group: SealedGroup) -> list[Claim]:
    """Return who opens a group, operators first."""
    return [
        Claim(text=f"{what} {one.label} {one.recipient}", key=one.recipient)
        for what, members in (("operator", group.operators), ("node", group.members))
        for one in members
    ]


def refuse_regress(group: SealedGroup, before: SealedGroup, known_from: str) -> None:
    """Reject a group that cannot follow another one; `known_from` is where that is from.

    It has an older identity, another one with the same serial, or a serial that is far too high.
    """
    where = f"sealed/groups/{group.name}.yaml"
    if group.serial < before.serial:
        raise InvalidInputError(
            f"serial {group.serial} is older than {before.serial} of {known_from}: a member that"
            " was revoked could read the next value",
            where=where,
            hint="merge the branch that revoked it",
        )
    if group.serial == before.serial and group.recipient != before.recipient:
        raise InvalidInputError(f"has another recipient than {known_from}", where=where)
    refuse_step(group.serial, before.serial, what="serial", where=where)
    if group.serial > before.serial and group.recipient == before.recipient:
        raise InvalidInputError(
            f"serial {group.serial} has the recipient of serial {before.serial}", where=where
        )


def is_step(now: int, before: int) -> bool:
    """Return whether the commands can have reached a number since the release."""
    return now <= before + MAX_STEP


def refuse_step(now: int, before: int, *, what: str, where: str) -> None:
    """Reject a number that the commands cannot have reached: the last one blocks a file."""
    if not is_step(now, before):
        raise InvalidInputError(
            f"{what} {now} follows {before}: the commands raise it by one",
            where=where,
            hint="take the file of the release ('git checkout TAG -- FILE'), and change it again",
        )


class ApprovedGroup(JsonRecord):
    serial: Annotated[int, AllowedRange(minimum=1)]
    claims: tuple[str, ...]


class Approvals(JsonRecord):
    """What a person approved: the groups of each repository by name."""

    SCHEMA: ClassVar = 1
    repositories: Mapping[str, Mapping[str, ApprovedGroup]]


class SealedTrust:
    """Decides which claims of groups in a work tree are known.

    `released` is the tree of the newest verified release, with its tag; empty without one. The
    private `file` outside of all clones has what a person approved of groups that no release has
    yet. `repository` is the URL of the origin, or the directory of a clone without one.
    """

    def __init__(self, released: SealedTree, tag: str, *, file: Path, repository: str) -> None:
        self.released = released
        self.tag = tag
        self._file = file
        self._repository = repository

    def last_serial(self, name: str) -> int:
        """Return the highest serial that is known of a group; 0 for a new one."""
        return max(self.released.serial_of(name), self._approved(name)[0])

    def unknown(self, group: SealedGroup, *, holders: bool) -> Sequence[Claim]:
        """Return what neither the release nor a person vouches for.

        With `holders`, operators and members count: they would get an identity.
        """
        before = self.released.group(group.name)
        serial, approved = self._approved(group.name)
        # A holder of an earlier identity may have been revoked: only the same serial counts.
        known = approved if group.serial == serial else frozenset[str]()
        if before is not None:
            refuse_regress(group, before, self.tag)
            if group.serial == before.serial:
                known |= {claim.text for claim in (head_of(before), *holders_of(before))}
        if group.serial < serial:
            raise InvalidInputError(
                f"serial {group.serial} is older than {serial}, which you approved",
                where=f"sealed/groups/{group.name}.yaml",
                hint="merge the branch that has it; if 'revoke' was interrupted, repeat it",
            )
        claims = [head_of(group), *(holders_of(group) if holders else ())]
        return [claim for claim in claims if claim.text not in known]

    def approve(self, group: SealedGroup, claims: Collection[Claim]) -> None:
        """Trust claims of a group durably, beside earlier ones that it still has."""
        serial, known = self._approved(group.name)
        if not claims and serial != group.serial:
            return
        present = {claim.text for claim in (head_of(group), *holders_of(group))}
        kept = known & present if serial == group.serial else frozenset()
        texts = tuple(sorted(kept | {claim.text for claim in claims}))
        before = self._read().repositories
        mine = dict(before.get(self._repository, {}))
        mine[group.name] = ApprovedGroup(serial=group.serial, claims=texts)
        make_private(self._file.parent)
        write_json(self._file, Approvals(repositories={**before, self._repository: mine}).to_dict())

    def _approved(self, name: str) -> tuple[int, frozenset[str]]:
        """Return the serial of a group that was approved, and its claims."""
        group = self._read().repositories.get(self._repository, {}).get(name)
        return (0, frozenset()) if group is None else (group.serial, frozenset(group.claims))

    def _read(self) -> Approvals:
        if not is_file(self._file):
            return Approvals(repositories={})
        data = read_secret_file(self._file, what="a record of approvals", limit=MAX_APPROVALS)
        hint = "remove it: you are asked again"
        try:
            return Approvals.from_dict(parse_object(data, where="", limit=MAX_APPROVALS))
        except LocalpuppetError as error:
            raise StateError(str(error), where=str(self._file), hint=hint) from error

    def refuse_moved(
        self, value: SealedValue, *, group: str | None = None, kind: str | None = None
    ) -> None:
        """Reject a value that has another group or type than in the release.

        A pull request can move a value, and the next secret must not follow it.

        Args:
            group, kind: What a person named: that may differ.
        """
        before = self.released.value(value.path) or value
        for what, was, now, named, option in (
            ("group", before.group, value.group, group, "--for"),
            ("type", before.type, value.type, kind, "--type"),
        ):
            if named is None and was != now:
                raise InvalidInputError(
                    f"has the {what} {now}, and in {self.tag} {was}",
                    where=f"sealed/values/{value.path}.yaml",
                    hint=f"name what is right: 'localpuppet sealed set' with {option}",
                )


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
        listed = self._git("ls-tree", "-r", "-z", "--full-tree", commit, f"{PREFIX}/").decode()
        blobs = {}
        for line in filter(None, listed.split("\0")):
            about, _, path = line.partition("\t")
            if about.startswith("100"):
                blobs[path.removeprefix(f"{PREFIX}/")] = about.split()[2]
        files = zip(blobs, self._objects(blobs.values()), strict=True)
        return SealedTree.of_files({name: file for name, file in files if file is not None})

    def conflicts(self) -> tuple[str, ...]:
        """Return the groups in which git has a conflict, sorted."""
        listed = self._git("diff", "--name-only", "--diff-filter=U", "-z", "--", PREFIX).decode()
        matches = filter(None, map(_FILE.match, listed.split("\0")))
        return tuple(sorted(match[3] for match in matches if match[2] == "groups"))

    def sides(self, name: str) -> list[SealedGroup]:
        """Return a group as the common ancestor, this branch and the other one have it."""
        path = f"{PREFIX}/groups/{name}.yaml"
        before, here, there = self._objects(f":{stage}:{path}" for stage in (1, 2, 3))
        if here is None or there is None:
            raise InvalidInputError("git has no conflict in it", where=path)
        ours = SealedGroup.parse(here, name=name)
        if before is None:
            base = ours.without({one for member in ours.everybody for one in member.names})
        else:
            base = SealedGroup.parse(before, name=name)
        return [base, ours, SealedGroup.parse(there, name=name)]

    def _objects(self, names: Iterable[str]) -> list[bytes | None]:
        """Return the bytes of objects; `None` for a missing one."""
        wanted = [*names]
        objects = self._program.objects(self._top / ".git", wanted) if wanted else []
        return [None if one is None else one[2] for one in objects]

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
        files = self._objects(blob for blob, _, _ in names)
        for (_, kind, name), file in zip(names, files, strict=True):
            try:
                if file is not None and kind == "groups":
                    groups.append(SealedGroup.parse(file, name=name))
                elif file is not None:
                    values.append(SealedValue.parse(file, path=name))
            except LocalpuppetError:
                continue  # git's marks in a merge, say
        is_cut = self._git("rev-parse", "--is-shallow-repository").strip() == b"true"
        return PastSealed(groups=tuple(groups), values=tuple(values), is_cut=is_cut)


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
