"""The directory `sealed` of a release or a work tree: its groups and values, and who opens them.

A run reads one value and its group; an author reads all. Both read a file only when asked, and
each file within its limit. `PREFIX` is where it is below a release's root.
"""

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.machine.files import input_errors
from localpuppet.node.sealed.age import AgeIdentity, NotOpenedError
from localpuppet.node.sealed.sealed_files import (
    MAX_GROUP_FILE,
    SealedGroup,
    SealedValue,
    parse_group_name,
    parse_path,
)

PREFIX = "sealed"
MAX_VALUES = 20_000
MAX_GROUPS = 1_000
_SUFFIX = ".yaml"
# Ends the name of a group that a revocation puts in place once all values are sealed to it.
NEXT = ".next"


class SealedTree:
    """The groups and values of a release, by names below `sealed`: `groups/role=db.yaml`."""

    def __init__(
        self, read: Callable[[str], bytes | None], names: Callable[[], tuple[str, ...]]
    ) -> None:
        self._read = read
        self._names = cache(names)
        self._groups: dict[str, SealedGroup | None] = {}

    @classmethod
    def of_files(cls, files: Mapping[str, bytes]) -> "SealedTree":
        """Return the tree of files that are in memory, by their path below `sealed`."""
        return cls(files.get, lambda: tuple(sorted(files)))

    @classmethod
    def on_disk(cls, root: Path) -> "SealedTree":
        """Return the tree of a release in a directory that contains `sealed`, or could."""
        directory = root / PREFIX
        return cls(lambda name: _read(directory, name), lambda: tuple(_files(directory)))

    @property
    def is_empty(self) -> bool:
        """Whether the release has no sealed values, and no groups."""
        return not self._names()

    def group(self, name: str) -> SealedGroup | None:
        """Return a group; `None` if there is no file of this name."""
        if name not in self._groups:
            data = self._read(f"groups/{parse_group_name(name)}{_SUFFIX}")
            self._groups[name] = None if data is None else SealedGroup.parse(data, name=name)
        return self._groups[name]

    def next_group(self, name: str) -> SealedGroup | None:
        """Return a group as an interrupted revocation is to leave it; `None` if none was."""
        data = self._read(f"groups/{parse_group_name(name)}{_SUFFIX}{NEXT}")
        return None if data is None else SealedGroup.parse(data, name=name)

    def value(self, path: str) -> SealedValue | None:
        """Return the value at `LEVEL/KEY`; `None` if it has no file."""
        data = self._read(f"values/{parse_path(path)}{_SUFFIX}")
        return None if data is None else SealedValue.parse(data, path=path)

    def serial_of(self, name: str) -> int:
        """Return the serial of a group; 0 if it has no file."""
        group = self.group(name)
        return group.serial if group else 0

    def number_of(self, path: str) -> int:
        """Return the number of a value; 0 if it has no file."""
        value = self.value(path)
        return value.number if value else 0

    def group_of(self, value: SealedValue) -> SealedGroup:
        where = f"sealed/values/{value.path}{_SUFFIX}"
        if (group := self.group(value.group)) is None:
            raise InvalidInputError(f"names the group {value.group}, which is missing", where=where)
        if group.serial != value.serial:
            raise InvalidInputError(
                f"is sealed for serial {value.serial} of {group.name}, which has serial"
                f" {group.serial}",
                where=where,
                hint="change this secret with 'localpuppet sealed set': a removed member may have"
                " it",
            )
        return group

    def group_names(self) -> list[str]:
        """Return the names of all groups, sorted."""
        return self._below("groups/", parse_group_name, MAX_GROUPS)

    def paths(self) -> list[str]:
        """Return `LEVEL/KEY` of all values, sorted."""
        return self._below("values/", parse_path, MAX_VALUES)

    def groups(self) -> Iterator[SealedGroup]:
        """Yield all groups, sorted by name."""
        yield from filter(None, map(self.group, self.group_names()))

    def values(self) -> Iterator[SealedValue]:
        """Yield all values, sorted by path."""
        yield from filter(None, map(self.value, self.paths()))

    def refuse_twins(self, path: str, group: str) -> None:
        """Reject a new value or group if another name differs only by case.

        A clone on a file system that ignores case would have one file for both.
        """
        _refuse_twin(path, self.paths(), folder="values")
        _refuse_twin(group, self.group_names(), folder="groups")

    def refuse_others(self) -> None:
        """Reject files that are neither a group nor a value, such as an editor's plaintext."""
        known = len(self.group_names()) + len(self.paths())
        if known != len(self._names()):
            other = next(
                name
                for name in self._names()
                if not name.startswith(("groups/", "values/")) or not name.endswith(_SUFFIX)
            )
            if other.endswith(_SUFFIX + NEXT):
                what = "a revocation was interrupted: repeat 'localpuppet sealed revoke'"
            else:
                what = "is neither a group nor a value: remove it"
            raise InvalidInputError(what, where=f"{PREFIX}/{other}")

    def _below(self, folder: str, parse: Callable[..., str], most: int) -> list[str]:
        names = [
            parse(name[len(folder) : -len(_SUFFIX)], where=f"{PREFIX}/{name}")
            for name in self._names()
            if name.startswith(folder) and name.endswith(_SUFFIX)
        ]
        if len(names) > most:
            raise InvalidInputError(
                f"has {len(names)} files, the limit is {most}", where=f"{PREFIX}/{folder}"
            )
        return sorted(names)


class SealedOpener:
    """Opens the values of one release for the holder of identities; each group is opened once.

    A node has its sealing key, or two while it changes it; an operator has the identities in a
    file.
    """

    def __init__(self, tree: SealedTree, identities: Sequence[AgeIdentity]) -> None:
        self.tree = tree
        self._identities = tuple(identities)
        self._opened: dict[str, AgeIdentity | None] = {}

    def content(self, value: SealedValue) -> bytes:
        """Return the content of a value.

        Raises:
            NotOpenedError: It is sealed for others.
            InvalidInputError: It was sealed for another place, an earlier serial, or is damaged.
        """
        group = self.tree.group_of(value)
        if (identity := self.identity(group)) is None:
            raise NotOpenedError(
                f"sealed for {group.name}, not for this node",
                where=f"sealed/values/{value.path}.yaml",
            )
        try:
            return value.open(group.recipient, [identity])
        except NotOpenedError as error:
            raise InvalidInputError(
                f"is not sealed for {group.name}, or its bytes changed",
                where=error.where,
                hint="seal it again with 'localpuppet sealed set'",
            ) from error

    def identity(self, group: SealedGroup) -> AgeIdentity | None:
        """Return the identity of a group; `None` if it is not wrapped for this holder."""
        if group.name not in self._opened:
            self._opened[group.name] = group.opened_by(self._identities)
        return self._opened[group.name]

    def opened_groups(self) -> tuple[str, ...]:
        """Return the names of all groups that this holder opens, sorted."""
        return tuple(group.name for group in self.tree.groups() if self.identity(group))

    def closed_groups(self, name: str) -> tuple[str, ...]:
        """Return the groups that name a node, or have its key, and that it does not open."""
        keys = {one.recipient for one in self._identities if not one.is_plugin}
        return tuple(
            group.name
            for group in self.tree.groups()
            if any(name in one.names or one.recipient in keys for one in group.members)
            and self.identity(group) is None
        )


def _refuse_twin(name: str, names: Sequence[str], *, folder: str) -> None:
    for other in names if name not in names else ():
        pairs = zip(name.split("/"), other.split("/"), strict=False)
        mine, theirs = next((pair for pair in pairs if pair[0] != pair[1]), ("", ""))
        if mine and mine.lower() == theirs.lower():
            raise InvalidInputError(
                f"differs from {other} only by case",
                where=f"{PREFIX}/{folder}/{name}{_SUFFIX}",
                hint="choose another name: some file systems would mix the two",
            )


def _read(directory: Path, name: str) -> bytes | None:
    """Return the bytes of a file, up to the limit of a group; links are not followed."""
    path = directory / name
    for folder in path.parents:
        _refuse_link(folder)
        if folder == directory:
            break
    with input_errors(path):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise InvalidInputError("is not a regular file", where=str(path))
            return file.read(MAX_GROUP_FILE + 1)


def _files(directory: Path) -> Iterator[str]:
    """Yield what is not a directory below a directory, sorted."""
    _refuse_link(directory)
    for folder, folders, names in os.walk(directory):
        folders.sort()
        inside = Path(folder)
        for name in folders:
            _refuse_link(inside / name)
        for name in sorted(names):
            yield str((inside / name).relative_to(directory))


def _refuse_link(directory: Path) -> None:
    """Reject a linked directory: what walks through the tree would not see its files."""
    if directory.is_symlink():
        raise InvalidInputError("is a link", where=str(directory), hint="remove it")
