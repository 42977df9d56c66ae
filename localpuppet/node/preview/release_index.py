"""The contents of a release by name: what a catalog read of one release holds for another or not.

- A state is the SHA-256 of a file's bytes, `DIRECTORY`, or `None` for a missing name.
- A listing is the digest of the names in a directory with their kinds; `data/**` means everything
  below `data`.
- A link counts as what it leads to; one that leads nowhere is `BROKEN`, and one that leads out of
  its tree is refused.
- Names are those of `ports.RawReads`. A compile may name any file: one that is not in the index has
  no state, and nothing looks for it.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.machine.files import input_errors
from localpuppet.base.machine.open_tree import OpenTree, open_entry
from localpuppet.base.value import Value
from localpuppet.node.preview.data_keys import MAX_BYTES, key_digests
from localpuppet.node.preview.ports import SITE_PREFIX
from localpuppet.node.releases.limits import LIMITS, MAX_DEPTH
from localpuppet.node.releases.release import Release

DIRECTORY, BROKEN = "directory", "broken"
# Data files whose keys stay in memory. A file of one node is read for that node only.
_DATA_FILES = 512
_EVERYTHING = "/**"
_TREE_NAME = 64  # of a tree of the content store

States = Mapping[str, str]


class TreeStates:
    """Remembers the states of trees that never change, by the name of their digest."""

    def get(self, tree: str) -> States | None:
        """Return the states of a tree; `None` if they are unknown."""
        return None

    def put(self, tree: str, states: States) -> None:
        """Remember the states of a tree."""


class IndexRoot(Value):
    """A directory or file of a release.

    Attributes:
        prefix: What its names start with: empty, or a name.
        path: Its path.
        digest: The digest or commit of a tree that never changes; empty for any other.
        is_base: Whether it is the machine's own, in which a link may lead out.
    """

    prefix: str
    path: Path
    digest: str = ""
    is_base: bool = False


class ReleaseIndex:
    """The states of all names of a release.

    Args:
        states: Name → state.
        read: Returns the first bytes of a file by its name, `MAX_BYTES` and one.

    Attributes:
        states: Name → state.
        read: Returns the first bytes of a file by its name.
    """

    def __init__(self, states: dict[str, str], read: Callable[[str], bytes]) -> None:
        self.states = states
        self.read = read
        self._children: dict[str, list[str]] = {}
        for name in states:
            self._children.setdefault(name.rpartition("/")[0] or ".", []).append(name)
        self._listings: dict[tuple[str, bool], str | None] = {}
        self._keys = lru_cache(_DATA_FILES)(self._parse_keys)

    @classmethod
    def of(cls, roots: Sequence[IndexRoot], known: TreeStates) -> "ReleaseIndex":
        """Return the index of a release on this machine.

        Args:
            roots: Its directories; a later one hides names of an earlier one.
            known: Remembers the states of trees that never change.

        Raises:
            InvalidInputError: A file cannot be read, or there are too many.
        """
        states: dict[str, str] = {".": DIRECTORY}
        paths = {root.prefix: root.path for root in roots}
        for root in roots:
            inner = known.get(root.digest) if root.digest else None
            if inner is None:
                inner = tree_states(root.path, leaving=BROKEN if root.is_base else "")
                if root.digest:
                    known.put(root.digest, inner)
            start = f"{root.prefix}/" if root.prefix else ""
            for name, state in inner.items():
                states[f"{start}{name}" if name != "." else root.prefix or "."] = state
            for parent in () if root.is_base else _parents(root.prefix):
                states.setdefault(parent, DIRECTORY)

        def read(name: str) -> bytes:
            for parent in (name, *_parents(name), ""):
                if parent in paths:
                    rest = name[len(parent) :].lstrip("/")
                    top = paths[parent] if rest else paths[parent].parent
                    with input_errors(top), OpenTree(top) as tree:
                        return tree.read(rest or paths[parent].name, most=MAX_BYTES + 1)
            raise InvalidInputError("is not a file of the release", where=name)

        return cls(states, read)

    def state(self, name: str) -> str | None:
        """Return the state of a name; `None` if it is missing, or not one of the release."""
        return self.states.get(name)

    def listing(self, directory: str) -> str | None:
        """Return the digest of the names in a directory; `None` if it is not one."""
        deep = directory.endswith(_EVERYTHING) or directory == "**"
        key = directory.removesuffix("**").rstrip("/") or ".", deep
        if key not in self._listings:
            self._listings[key] = self._list(*key)
        return self._listings[key]

    def keys(self, file: str) -> Mapping[str, str] | None:
        """Return root key → digest of a data file; `None` if it counts as a whole, or is missing.

        Raises:
            InvalidInputError: The file cannot be read.
        """
        return self._keys(file) if self.states.get(file) not in (None, DIRECTORY, BROKEN) else None

    def _parse_keys(self, file: str) -> Mapping[str, str] | None:
        return key_digests(file, self.read(file))

    def _list(self, top: str, deep: bool) -> str | None:
        if self.states.get(top) != DIRECTORY:
            return None
        names = sorted(self.below(top) if deep else self._children.get(top, ()))
        return _listing_digest((name, self.states[name]) for name in names if name != ".")

    def below(self, top: str) -> Iterator[str]:
        """Yield the names of everything below a directory."""
        waiting = [top]
        while waiting:
            for name in self._children.get(waiting.pop(), ()):
                if name != ".":
                    yield name
                    waiting.append(name)


def index_roots(release: Release, site_manifest: Path, *, own: str = "") -> list[IndexRoot]:
    """Return the directories of a release whose contents catalogs depend on.

    Args:
        release: The release.
        site_manifest: The site manifest of the root, for a release that has none.
        own: The key by which the states of its tree are remembered; empty if they are not.
    """
    roots = [
        IndexRoot(prefix=start, path=tree, digest=_store_digest(tree) if start else own)
        for start, tree in sorted(release.trees.items())
    ]
    if release.site_manifest is None and site_manifest.exists():
        prefix = f"{SITE_PREFIX}{site_manifest.name}"
        roots.append(IndexRoot(prefix=prefix, path=site_manifest))
    base = (IndexRoot(prefix=str(path), path=path, is_base=True) for path in release.base)
    return [*roots, *base]


def _store_digest(tree: Path) -> str:
    """Return the digest by which the content store names a tree; empty for any other tree."""
    real = tree.resolve()
    return real.name if real.parent.name == "objects" and len(real.name) == _TREE_NAME else ""


def _parents(name: str) -> Iterator[str]:
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def tree_states(top: Path, *, leaving: str = "", shown: Path | None = None) -> dict[str, str]:
    """Return the states of everything in a directory, or of a file, by the name relative to it.

    Args:
        top: The directory or file.
        leaving: The state of a link that leads out; empty to refuse it.
        shown: Its path in messages; the path by default.

    Raises:
        InvalidInputError: A file cannot be read, a link leads out, or there are too many files.
    """
    with input_errors(top):
        if not top.is_dir():
            file = os.open(top, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                return {".": _file_state(file, top)}
            finally:
                os.close(file)
        with OpenTree(top, shown=shown) as tree:
            reader = _TreeReader(tree, leaving)
            reader.add(tree.descriptor, "", ())
        return reader.states


def tree_metadata(top: Path) -> str:
    """Return a digest of the names, sizes, times and inodes in a directory.

    While it is the same, so are the contents: only root can set the time of a change of metadata.
    """
    form = hashlib.sha256()
    with input_errors(top):
        waiting = [str(top)]
        while waiting:
            with os.scandir(waiting.pop()) as entries:
                for entry in sorted(entries, key=lambda entry: entry.name):
                    status = entry.stat(follow_symlinks=False)
                    times = status.st_mtime_ns, status.st_ctime_ns
                    parts = entry.path, status.st_mode, status.st_size, status.st_ino, times
                    form.update(repr(parts).encode("utf-8", "surrogateescape"))
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
    return form.hexdigest()


class _TreeReader:
    """Reads the states of everything in a tree."""

    def __init__(self, tree: OpenTree, leaving: str) -> None:
        self._tree, self._leaving = tree, leaving
        self._files: dict[tuple[int, int], str] = {}
        self.states = {".": DIRECTORY}

    def add(self, directory: int, start: str, above: tuple[tuple[int, int], ...]) -> None:
        """Add the states of everything in an open directory, whose names begin with `start`."""
        own = _identity(os.fstat(directory))
        if own in above or len(above) > MAX_DEPTH:
            where = str(self._tree.path / start)
            raise InvalidInputError("has a link to a directory that it is in", where=where)
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name == ".git":
                    continue
                if len(self.states) > LIMITS.members:
                    raise InvalidInputError(
                        f"has more than {LIMITS.members} members", where=str(self._tree.path)
                    )
                name = f"{start}{entry.name}"
                if entry.is_symlink():
                    inner = self._follow(name)
                    if isinstance(inner, str):
                        self.states[name] = inner
                        continue
                elif entry.is_file() or entry.is_dir():
                    inner = open_entry(entry.name, directory)
                else:
                    raise InvalidInputError(
                        "is not a regular file", where=f"{self._tree.path}/{name}"
                    )
                try:
                    self._add(inner, name, (*above, own))
                finally:
                    os.close(inner)

    def _follow(self, name: str) -> int | str:
        """Return a descriptor of what a link leads to, or its state."""
        try:
            found = self._tree.find(name)
        except InvalidInputError:
            if not self._leaving:
                raise
            return self._leaving
        return BROKEN if found is None else found

    def _add(self, descriptor: int, name: str, above: tuple[tuple[int, int], ...]) -> None:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            self.states[name] = DIRECTORY
            self.add(descriptor, f"{name}/", above)
            return
        own = _identity(status)
        if own not in self._files:  # links to a directory lead to the same files many times
            self._files[own] = _file_state(descriptor, self._tree.path / name)
        self.states[name] = self._files[own]


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _file_state(descriptor: int, path: Path) -> str:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise InvalidInputError("is not a regular file", where=str(path))
    with os.fdopen(os.dup(descriptor), "rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _listing_digest(entries: Iterable[tuple[str, str]]) -> str:
    form = hashlib.sha256()
    for name, state in entries:
        kind = state if state in (DIRECTORY, BROKEN) else "file"
        form.update(f"{kind} {name}\0".encode("utf-8", "surrogateescape"))
    return form.hexdigest()
