"""The content store: trees by their digest, complete or absent.

The specification is docs/reference/tree-digest.md; standard tools can recompute it.

- `objects/SHA256/` has read-only trees, `index/SHA256` the expected metadata of their files,
  `staging/` incoming trees, `quarantine/` damaged trees.
- Under its final name a tree is complete and durable, and never written again.
"""

import errno
import hashlib
import os
import posixpath
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from localpuppet.base.errors import BusyError, IntegrityError, InvalidInputError, StateError
from localpuppet.base.machine.files import disk_errors, make_private, remove_tree, sync_filesystem
from localpuppet.base.machine.flock import Flock
from localpuppet.base.machine.open_tree import OpenTree
from localpuppet.base.value import Value
from localpuppet.node.releases.limits import LIMITS, Budget, Limits, size_problem

_BAD_NAME = re.compile(rb"[\x00-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xa8-\xae]|\xe2\x81[\xa6-\xa9]")


class TreeEntry(Value):
    """A file or symlink of a tree, with the digest of its bytes or of its target.

    `path` is relative to the tree's root, as bytes, separated by `/`.
    """

    path: bytes
    kind: str
    sha256: str


def digest(entries: Iterable[TreeEntry]) -> str:
    """Return the digest of a tree: the SHA-256 of its listing.

    The listing has a line `KIND SHA256 PATH` for every entry, sorted by the bytes of the path.
    """
    listing = hashlib.sha256()
    for entry in sorted(entries, key=lambda entry: entry.path):
        listing.update(f"{entry.kind} {entry.sha256} ".encode() + entry.path + b"\n")
    return listing.hexdigest()


def check_path(path: bytes, *, where: str) -> None:
    """Reject a path that must not be in a tree."""
    if problem := size_problem(path):
        place = path[:120].decode("utf-8", "backslashreplace")
        raise IntegrityError(problem, where=f"{where}: {place!r}")
    shown = path.decode("utf-8", "backslashreplace")
    if _BAD_NAME.search(path):
        raise IntegrityError("a file's name has a control character", where=f"{where}: {shown!r}")
    components = path.split(b"/")
    if any(part.lower() in (b"", b".", b"..", b".git") for part in components):
        raise IntegrityError("a file's name is not allowed", where=f"{where}: {shown!r}")


def check_link(path: bytes, target: bytes, *, where: str) -> None:
    """Reject a symlink that leads out of its tree."""
    shown = path.decode("utf-8", "backslashreplace")
    if target.startswith(b"/"):
        raise IntegrityError("an absolute symlink", where=f"{where}: {shown!r}")
    if _BAD_NAME.search(target) or not target:
        raise IntegrityError("a symlink with a bad target", where=f"{where}: {shown!r}")
    reached = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    if reached == b".." or reached.startswith(b"../"):
        raise IntegrityError("a symlink that points outside the tree", where=f"{where}: {shown!r}")


CHUNK = 1024 * 1024


class StoreLocks:
    """The locks of a content store. The caller releases a lock."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def take_for_changes(self) -> Flock:
        return self._take(
            "stage.lock", "another process changes the store", "try again when it has ended"
        )

    def take_for_run(self) -> Flock:
        """Return a shared lock that keeps `gc` away from the release of a run without a record.

        Many processes hold it at a time.
        """
        return self._take(
            "kept.lock", "releases are being removed", "try again when gc has ended", shared=True
        )

    def take_for_removal(self) -> Flock:
        """Return the lock for removing releases: no run is being prepared, which may need any."""
        return self._take(
            "kept.lock",
            "a run is being prepared, and what it needs is not on record yet",
            "try again in a moment",
        )

    def _take(self, name: str, problem: str, hint: str, *, shared: bool = False) -> Flock:
        make_private(self._directory)
        path = self._directory / name
        if (lock := Flock.take(path, shared=shared)) is None:
            raise BusyError(problem, where=str(path), hint=hint)
        return lock


class Store:
    """The trees on this machine; `note` takes messages about files that could not be removed."""

    def __init__(
        self,
        directory: Path,
        *,
        note: Callable[[str], None] = lambda _text: None,
        limits: Limits = LIMITS,
    ) -> None:
        self.directory = directory
        self.locks = StoreLocks(directory)
        self._note = note
        self._limits = limits
        self.objects = directory / "objects"
        self._index = directory / "index"
        self._staging = directory / "staging"
        self._quarantine = directory / "quarantine"
        self._weights: dict[str, tuple[int, int]] = {}  # as they were when they were last looked at

    def budget(self) -> Budget:
        """Return a budget that counts the trees of one release before they are written."""
        return Budget(self._limits)

    def path(self, sha256: str) -> Path:
        """Return the path of the tree `sha256`, which may not exist."""
        return self.objects / sha256

    def has(self, sha256: str) -> bool:
        return self.path(sha256).is_dir() and (self._index / sha256).is_file()

    def digests(self) -> list[str]:
        return sorted(path.name for path in self.objects.iterdir()) if self.objects.is_dir() else []

    def staging(self) -> Path:
        """Return a new, empty directory for incoming trees; remove old ones.

        The caller holds the lock, so old directories belong to dead processes.
        """
        for directory in (self.objects, self._index, self._staging):
            make_private(directory)
        self.sweep([*self._staging.iterdir(), *self._index.glob(".*")])
        path = self._staging / os.urandom(8).hex()
        make_private(path)
        return path

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield a directory for incoming trees, and remove it at the end; see `staging`."""
        path = self.staging()
        try:
            yield path
        finally:
            self.sweep([path])

    def sweep(self, rubbish: Iterable[Path]) -> None:
        """Remove files of dead processes; failures are only noted."""
        for path in rubbish:
            try:
                remove_tree(path)
            except StateError as error:
                self._note(f"warning: cannot remove files of a process that ended: {error}")

    def add(
        self,
        trees: Iterable[tuple[str, Path]],
        *,
        accept: Callable[[Mapping[str, str]], None] = lambda _found: None,
    ) -> dict[str, str]:
        """Take trees from the staging directory into the store, all or none; return name → digest.

        Args:
            trees: Name for messages and directory below `staging()`. They are taken one by one, so
                that later ones may still be written meanwhile.
            accept: Called with the digests by name before anything is added; raises to reject them.

        Raises:
            IntegrityError: A tree has a forbidden member, or is not accepted.
        """
        digests: dict[str, str] = {}
        ready: list[tuple[Path, str, Path]] = []
        listings = self._staging / os.urandom(8).hex()
        with ExitStack() as cleanup, disk_errors(self._staging):
            cleanup.callback(remove_tree, listings)
            make_private(listings)
            budget = self.budget()
            for name, tree in trees:
                # Renaming keeps a file's times and inode: what is true here stays true. Two trees
                # with the same bytes have a listing each.
                lines: list[bytes] = []
                digests[name] = digest(
                    _entries(tree, _walk(tree, seal=True), where=name, budget=budget, sealed=lines)
                )
                listing = listings / str(len(ready))
                listing.write_text(_metadata(lines), "ascii")
                ready.append((tree, digests[name], listing))
            accept(digests)
            # Bytes first, names after: durable bytes without a name are rubbish, the other way
            # round they would be a lie. One call for all is as good as an fsync for each.
            sync_filesystem(self._staging)
            for tree, sha256, listing in ready:
                self._publish(tree, sha256, listing)
            sync_filesystem(self._staging)
        return digests

    def _publish(self, tree: Path, sha256: str, listing: Path) -> None:
        if self.has(sha256):
            remove_tree(tree)
            return
        final = self.path(sha256)
        if final.exists():  # without an index entry: a crash between the two
            remove_tree(final)
        tree.rename(final)
        listing.rename(self._index / sha256)

    def problem(self, sha256: str, *, full: bool) -> str:
        """Return the problem of a tree, or empty.

        `full` hashes every byte; otherwise only names, sizes, times and modes are compared.
        """
        path = self.path(sha256)
        try:
            expected = (self._index / sha256).read_text("ascii")
            if not path.is_dir():
                return "is missing"
            if full:
                real = digest(entries(path, where=sha256))
                return "" if real == sha256 else f"has the digest {real}"
            files = [(name, os.lstat(file)) for name, file in _walk(path)]
            if _metadata(_line(name, status) for name, status in files) != expected:
                return "was changed (names, sizes, times or modes)"
            self._weights[sha256] = (len(files), sum(status.st_size for _, status in files))
            return ""
        except FileNotFoundError:
            return "is missing or incomplete"
        except IntegrityError as error:
            return str(error)
        except OSError as error:
            return f"cannot be read: {error.strerror}"

    def sound(self, sha256: str) -> bool:
        """Return whether the store has a complete tree; move a damaged one to quarantine."""
        if not self.has(sha256):
            return False
        if self.problem(sha256, full=False) and self.problem(sha256, full=True):
            self.quarantine(sha256)
            return False
        return True

    def weight(self, sha256: str) -> tuple[int, int]:
        """Return the number of files and links of a tree, and their bytes.

        Results of `problem` or `sound` are reused.
        """
        if sha256 in self._weights:
            return self._weights[sha256]
        path = self.path(sha256)
        with disk_errors(path):
            sizes = [os.lstat(file).st_size for _, file in _walk(path)]
        return len(sizes), sum(sizes)

    def quarantine(self, sha256: str) -> Path:
        """Move a tree to quarantine for inspection; return its new path."""
        make_private(self._quarantine)
        self._weights.pop(sha256, None)
        aside = self._quarantine / f"{sha256}-{os.urandom(4).hex()}"
        with disk_errors(aside):
            (self._index / sha256).unlink(missing_ok=True)
            if self.path(sha256).exists():
                self.path(sha256).rename(aside)
        return aside

    def remove(self, sha256: str) -> None:
        """Remove a tree, its index entry first: an incomplete tree never counts as complete."""
        self._weights.pop(sha256, None)
        with disk_errors(self.path(sha256)):
            (self._index / sha256).unlink(missing_ok=True)
            remove_tree(self.path(sha256))


def _walk(root: Path, *, seal: bool = False) -> Iterator[tuple[bytes, bytes]]:
    """Yield relative and absolute path of each file and symlink; `seal` sets directory modes."""
    pending = [(os.fsencode(root), b"")]
    while pending:
        directory, prefix = pending.pop()
        if seal:
            os.chmod(directory, 0o755)  # noqa: PTH101, S103 - bytes paths; as Puppet needs it
        with os.scandir(directory) as entries:
            for entry in entries:
                path = prefix + entry.name
                if entry.is_dir(follow_symlinks=False):
                    pending.append((entry.path, path + b"/"))
                else:
                    yield path, entry.path


def _entries(
    root: Path,
    files: Iterable[tuple[bytes, bytes]],
    *,
    where: str,
    budget: Budget,
    sealed: list[bytes] | None = None,
) -> Iterator[TreeEntry]:
    """Yield the entries of a tree, each checked and counted.

    With `sealed`, files are made read-only on the way, and their lines for `_metadata` added to it.
    """
    for path, file in files:
        check_path(path, where=where)
        try:
            fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            budget.take(0, where=where)
            target = os.readlink(file)  # noqa: PTH115 - bytes paths
            check_link(path, target, where=where)
            _check_chain(root, path, where=where)
            if sealed is not None:
                sealed.append(_line(path, os.lstat(file)))
            yield TreeEntry(path=path, kind="L", sha256=hashlib.sha256(target).hexdigest())
            continue
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise IntegrityError("something that is not a file, link or directory", where=where)
            budget.take(status.st_size, where=where)
            executable = bool(status.st_mode & stat.S_IXUSR)
            content = _hash(fd, status.st_size)
            if sealed is not None:
                mode = 0o555 if executable else 0o444
                os.fchmod(fd, mode)
                sealed.append(_line(path, status, mode=stat.S_IFREG | mode))
        finally:
            os.close(fd)
        yield TreeEntry(path=path, kind="X" if executable else "F", sha256=content)


def _check_chain(root: Path, path: bytes, *, where: str) -> None:
    """Reject a link that leads out by others, each of which looks harmless."""
    with OpenTree(root) as tree:
        try:
            found = tree.find(os.fsdecode(path))
        except InvalidInputError as error:
            raise IntegrityError("a symlink that points outside the tree", where=where) from error
    if found is not None:
        os.close(found)


def _hash(fd: int, size: int) -> str:
    """Return the digest of an open file, read `size` bytes in as few steps as possible."""
    content = hashlib.sha256()
    wanted = min(CHUNK, size + 1)
    while data := os.read(fd, wanted):
        content.update(data)
        if len(data) < wanted:  # a regular file ends here
            break
    return content.hexdigest()


def _line(path: bytes, status: os.stat_result, *, mode: int | None = None) -> bytes:
    """Return the metadata line of a file: cheap to read, changed by edits."""
    fields = (status.st_size, status.st_mtime_ns, status.st_ino, mode or status.st_mode)
    return b"%s %d %d %d %o\n" % (path, *fields)


def _metadata(lines: Iterable[bytes]) -> str:
    """Return a digest of names, sizes, times and modes of files."""
    return hashlib.sha256(b"".join(sorted(lines))).hexdigest()


def sha256_of(file: Path) -> str:
    """Return the SHA-256 of a file."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def entries(root: Path, *, where: str, leave_out: bytes = b"/") -> Iterator[TreeEntry]:
    """Yield the checked entries of any tree on disk; read every byte."""
    files = (file for file in _walk(root) if file[0].partition(b"/")[0] != leave_out)
    return _entries(root, files, where=where, budget=Budget())


def tree_digest(root: Path, *, where: str) -> str:
    """Return the digest of any tree on disk; read every byte."""
    return digest(entries(root, where=where))
