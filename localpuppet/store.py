"""The content store: trees by their digest, complete or absent.

Owns: `objects/SHA256/` (read-only trees), `index/SHA256` (what their files' metadata should be),
`staging/` (trees on their way in), `quarantine/` (trees that are not what their name says).
Invariants: under its final name a tree is whole and durable; nothing in it is ever written again.
Refuses to know: releases, git.
"""

import hashlib
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from localpuppet.errors import BusyError, IntegrityError
from localpuppet.files import (
    Flock,
    make_private,
    remove_tree,
    state_problem,
    sync_filesystem,
    write_durably,
)
from localpuppet.model.tree import Entry, check_link, check_path, digest

CHUNK = 1024 * 1024


class Store:
    """Trees on this machine.

    Args:
        directory: The state directory.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.objects = directory / "objects"
        self._index = directory / "index"
        self._staging = directory / "staging"
        self._quarantine = directory / "quarantine"

    def path(self, sha256: str) -> Path:
        """Return where the tree `sha256` is, or would be."""
        return self.objects / sha256

    def has(self, sha256: str) -> bool:
        """Return whether the tree is here."""
        return self.path(sha256).is_dir() and (self._index / sha256).is_file()

    def digests(self) -> list[str]:
        """Return all trees."""
        return sorted(path.name for path in self.objects.iterdir()) if self.objects.is_dir() else []

    def exclusively(self) -> Flock:
        """Return the lock that everyone who changes the store holds; the caller releases it.

        Raises:
            BusyError: Another process has it.
            StateError: The lock file cannot be made.
        """
        make_private(self._directory)
        lock = Flock.take(self._directory / "stage.lock")
        if lock is None:
            raise BusyError(
                "another process changes the store",
                where=str(self._directory / "stage.lock"),
                hint="try again when it has ended",
            )
        return lock

    def staging(self) -> Path:
        """Return a new, empty directory for trees that are to be added; sweep old ones away.

        Call it with the lock only: what is found there belongs to a dead process.

        Raises:
            StateError: The disk refused.
        """
        for directory in (self.objects, self._index, self._staging):
            make_private(directory)
        for old in [*self._staging.iterdir(), *self._index.glob(".*")]:
            remove_tree(old)
        path = self._staging / secrets.token_hex(8)
        make_private(path)
        return path

    def add(self, trees: Mapping[str, Path]) -> dict[str, str]:
        """Take trees from the staging directory into the store.

        Args:
            trees: Name for messages → directory below `staging()`.

        Returns:
            Name → digest.

        Raises:
            IntegrityError: A tree holds what must not be in one.
            StateError: The disk refused; nothing was added.
        """
        found: dict[str, str] = {}
        listings: dict[str, str] = {}
        try:
            for name, tree in trees.items():
                found[name] = digest(entries(tree, where=name, seal=True))
                listings[found[name]] = metadata(tree)
            sync_filesystem(self._staging)
            for name, tree in trees.items():
                self._publish(tree, found[name], listings[found[name]])
            sync_filesystem(self._staging)
        except OSError as error:
            raise state_problem(error, self._staging) from error
        return found

    def _publish(self, tree: Path, sha256: str, listing: str) -> None:
        if self.has(sha256):
            remove_tree(tree)
            return
        final = self.path(sha256)
        if final.exists():  # without an index entry: a crash between the two
            remove_tree(final)
        tree.rename(final)
        # Renaming keeps a file's times and inode, so the listing made in staging stays true.
        write_durably(self._index / sha256, listing.encode())

    def problem(self, sha256: str, *, full: bool) -> str:
        """Return what is wrong with a tree; empty when nothing is.

        Args:
            sha256: The tree.
            full: Hash every byte; otherwise only names, sizes, times and modes are compared.
        """
        path = self.path(sha256)
        try:
            expected = (self._index / sha256).read_text("ascii")
            if not path.is_dir():
                return "is missing"
            if full:
                real = digest(entries(path, where=sha256, seal=False))
                return "" if real == sha256 else f"has the bytes of {real}"
            return (
                "" if metadata(path) == expected else "was changed (names, sizes, times or modes)"
            )
        except FileNotFoundError:
            return "is missing or incomplete"
        except IntegrityError as error:
            return str(error)
        except OSError as error:
            return f"cannot be read: {error.strerror}"

    def sound(self, sha256: str) -> bool:
        """Return whether a tree is here and whole; a damaged one is put aside, to be fetched again.

        Raises:
            StateError: The disk refused.
        """
        if not self.has(sha256):
            return False
        if self.problem(sha256, full=False) and self.problem(sha256, full=True):
            self.quarantine(sha256)
            return False
        return True

    def quarantine(self, sha256: str) -> Path:
        """Put a tree aside, for somebody to look at; return where it is now.

        Raises:
            StateError: The disk refused.
        """
        make_private(self._quarantine)
        aside = self._quarantine / f"{sha256}-{secrets.token_hex(4)}"
        try:
            (self._index / sha256).unlink(missing_ok=True)
            if self.path(sha256).exists():
                self.path(sha256).rename(aside)
        except OSError as error:
            raise state_problem(error, aside) from error
        return aside

    def remove(self, sha256: str) -> None:
        """Remove a tree: first its index entry, so that half a tree is never taken for a whole one.

        Raises:
            StateError: The disk refused.
        """
        try:
            (self._index / sha256).unlink(missing_ok=True)
            remove_tree(self.path(sha256))
        except OSError as error:
            raise state_problem(error, self.path(sha256)) from error


def _walk(root: Path) -> Iterator[tuple[bytes, "os.DirEntry[bytes]"]]:
    """Yield every file and symlink below `root` with its relative path, as bytes."""
    pending = [(os.fsencode(root), b"")]
    while pending:
        directory, prefix = pending.pop()
        with os.scandir(directory) as entries:
            for entry in entries:
                path = prefix + entry.name
                if entry.is_dir(follow_symlinks=False):
                    pending.append((entry.path, path + b"/"))
                else:
                    yield path, entry


def entries(root: Path, *, where: str, seal: bool) -> Iterator[Entry]:
    """Yield the entries of a tree, each checked; with `seal` make them read-only on the way.

    Args:
        root: The tree.
        where: Its name in messages.
        seal: Make the files 0444 or 0555.

    Raises:
        IntegrityError: The tree holds what must not be in one.
    """
    real_root = os.path.realpath(os.fsencode(root))
    for path, entry in _walk(root):
        check_path(path, where=where)
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            target = os.readlink(entry.path)  # noqa: PTH115 - bytes paths
            check_link(path, target, where=where)
            # A chain of links may lead out where each of them looks harmless.
            if not (os.path.realpath(entry.path) + b"/").startswith(real_root + b"/"):
                raise IntegrityError("a symlink that leads outside the tree", where=where)
            yield Entry(path=path, kind="L", sha256=hashlib.sha256(target).hexdigest())
        elif stat.S_ISREG(status.st_mode):
            executable = bool(status.st_mode & stat.S_IXUSR)
            with open(entry.path, "rb", buffering=0) as file:  # noqa: PTH123 - bytes paths
                content = hashlib.file_digest(file, "sha256")
                if seal:
                    os.fchmod(file.fileno(), 0o555 if executable else 0o444)
            yield Entry(path=path, kind="X" if executable else "F", sha256=content.hexdigest())
        else:
            raise IntegrityError("something that is no file, link or directory", where=where)


def tree_digest(root: Path, *, where: str) -> str:
    """Return the digest of a tree anywhere on disk, every byte read.

    Raises:
        IntegrityError: It holds what must not be in a tree.
    """
    return digest(entries(root, where=where, seal=False))


def metadata(root: Path) -> str:
    """Return a digest of names, sizes, times and modes below `root`: cheap, changed by edits."""
    lines = []
    for path, entry in _walk(root):
        status = entry.stat(follow_symlinks=False)
        fields = f" {status.st_size} {status.st_mtime_ns} {status.st_ino} {status.st_mode:o}\n"
        lines.append(path + fields.encode())
    return hashlib.sha256(b"".join(sorted(lines))).hexdigest()
