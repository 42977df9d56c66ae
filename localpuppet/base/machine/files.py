"""Read what users wrote, write durably, and know which files no other user can write.

- The owner is root or the user behind sudo.
- Others cannot write it, and no access control list could let them.
- A group may write only if it is the private group of a trusted user: it has that user's name, is
  that user's primary group, and has no other member. This applies to group 0 as well: some systems
  put other accounts in it.
- A durable write is temp file, fsync, rename, fsync of the directory: a reader sees the old bytes
  or the new ones.
- Files are private (0600, directories 0700) unless the caller passes another mode.
- Root never reads a file that another user can change.

A call returns the value of the files as they are now, or raises; it never returns an outdated one.
"""

import errno
import json
import os
import re
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

from localpuppet.base.errors import ROOT_HINT, InvalidInputError, StateError, check_limit

_ACL = "system.posix_acl_access"
_NAMED = 10  # files that a message names


class ForeignFileError(InvalidInputError):
    """Other users could write a file that root would use."""


def refuse_foreign(file: Path | int, *, where: str = "", owners: Collection[int] = ()) -> None:
    """Reject, as root, a file or directory that other users could write.

    Root also accepts files of `owners`, here and below.

    Raises:
        InvalidInputError: The file is missing, or other users could write it.
    """
    where = where or str(file)
    try:
        status = os.stat(file)  # noqa: PTH116 - may be a descriptor
        if os.geteuid() != 0:
            return
        listed = status.st_mode & stat.S_IWGRP and _has_acl(file)
    except OSError as error:
        raise InvalidInputError(f"cannot be read: {error.strerror}", where=where) from error
    if listed:
        raise ForeignFileError(
            "has an access control list, by which others may write it, and would be run as root",
            where=where,
            hint=f"setfacl -b {where}; chmod go-w {where}",
        )
    users = users_of_root() | {*owners}
    by_group = status.st_mode & stat.S_IWGRP and not _is_private(status.st_gid, users)
    if status.st_uid not in users or status.st_mode & stat.S_IWOTH or by_group:
        mode = stat.S_IMODE(status.st_mode)
        raise ForeignFileError(
            f"is writable by others (mode {mode:04o}, owner uid {status.st_uid},"
            f" gid {status.st_gid}) and would be run as root",
            where=where,
            hint=_cure(status, where),
        )


def refuse_foreign_directory(directory: Path) -> None:
    """Reject, as root, a directory that other users could write: name all of its files at once.

    Raises:
        ForeignFileError: Other users could write the directory or what is in it.
    """
    foreign = []
    for path in (directory, *sorted(directory.iterdir())):
        try:
            refuse_foreign(path)
        except ForeignFileError:
            foreign.append("the directory itself" if path == directory else path.name)
    if foreign:
        more = f" and {len(foreign) - _NAMED} more" if len(foreign) > _NAMED else ""
        raise ForeignFileError(
            f"others can write this directory, and root would run it: {', '.join(foreign[:_NAMED])}"
            f"{more}",
            where=str(directory),
            hint=_cure(directory.stat(), str(directory), "-R "),
        )


def _cure(status: os.stat_result, where: str, every: str = "") -> str:
    """Return how to take a file, or with `-R ` all of a directory, from other users."""
    if status.st_mode & stat.S_ISVTX:
        return "others share this directory: use one that only root can write, such as /root"
    return f"chown {every}root {where}; chmod {every}go-w {where}"


def users_of_root() -> set[int]:
    """Return the users whose files root trusts: root and the user behind sudo."""
    text = os.environ.get("SUDO_UID", "")
    return {0, int(text) if text.isdecimal() and len(text) < 11 else 0}


def _has_acl(file: Path | int) -> bool:
    try:
        os.getxattr(file, _ACL)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP):
            return False
        raise
    return True


def _is_private(group: int, users: Collection[int]) -> bool:
    """Return whether a group is the private group of a trusted user."""
    import grp
    import pwd  # imported only if a group may write

    try:
        entry = grp.getgrgid(group)
        user = pwd.getpwnam(entry.gr_name)
    except KeyError:
        return False
    others = {*entry.gr_mem} - {user.pw_name}
    others |= {
        other.pw_name
        for other in pwd.getpwall()
        if other.pw_gid == group and other.pw_uid != user.pw_uid
    }
    return user.pw_gid == group and user.pw_uid in users and not others


MAX_DOCUMENT = 1024 * 1024
# The names of `_temporary`.
_TEMPORARY = r"\..*\.[0-9a-f]{12}"
CHUNK = 1024 * 1024


def read_user_file(path: Path, *, limit: int = MAX_DOCUMENT, owners: Collection[int] = ()) -> bytes:
    """Return the bytes of a file that a user wrote for localpuppet.

    Raises:
        InvalidInputError: The file is missing, unreadable, not a regular file, too large, or (as
            root) writable by others, which ssh and sudo reject as well.
    """
    with open_user_file(path, limit=limit, owners=owners) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise InvalidInputError(f"is too large: the limit is {limit} bytes", where=str(path))
    return data


def open_user_file(path: Path, *, limit: int, owners: Collection[int] = ()) -> BinaryIO:
    """Return a user's file, open for reading; for files too large for memory.

    Args:
        limit: Maximum size in bytes at the time of the call.

    Raises:
        InvalidInputError: As `read_user_file` does.
    """
    where = str(path)
    try:
        # A FIFO must not block before fstat can identify it.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        if getattr(error, "errno", 0) == errno.ENOENT:
            hint = "create it, or pass another path"
            raise InvalidInputError("file not found", where=where, hint=hint) from error
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidInputError(f"cannot be read: {reason}", where=where) from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidInputError("is not a regular file", where=where)
        refuse_foreign(fd, where=where, owners=owners)
        check_limit(status.st_size, limit, where=where)
    except BaseException:
        os.close(fd)
        raise
    return os.fdopen(fd, "rb")


def read_secret_file(
    path: Path,
    *,
    what: str,
    limit: int,
    owners: Collection[int] = (),
    readers: Collection[int] = (),
) -> bytes:
    """Return the bytes of a file with a secret, which other users cannot read.

    Args:
        readers: Groups that may read the file.

    Raises:
        InvalidInputError: The file is missing, or other users can read it.
    """
    with open_user_file(path, limit=limit, owners=owners) as file:
        status = os.fstat(file.fileno())
        # From systemd 258 on a credential has an access list, whose mask stat shows as the group's.
        handed = str(path.parent) == os.environ.get("CREDENTIALS_DIRECTORY")
        allowed = stat.S_IRGRP if handed or status.st_gid in readers else 0
        if stat.S_IMODE(status.st_mode) & 0o077 & ~allowed:
            raise InvalidInputError(
                f"is {what} that others can read (mode {stat.S_IMODE(status.st_mode):04o})",
                where=str(path),
                hint=f"chmod 0600 {path}; make a new one if others may have copied it",
            )
        return file.read(limit)


def is_file(path: Path) -> bool:
    """Return whether an optional file exists.

    A broken link is an error: a file must not be ignored silently, for example settings with
    `immutable_only`.

    Raises:
        InvalidInputError: The path is a broken link, or not a regular file.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        for link in (path, path.parent):
            if link.is_symlink() and not link.exists():
                raise InvalidInputError(
                    "is a broken link",
                    where=str(link),
                    hint="repair the link, or remove it if you need no file",
                ) from None
        return False
    except OSError as error:
        raise InvalidInputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    if not stat.S_ISREG(mode):
        raise InvalidInputError("is not a regular file", where=str(path))
    return True


def make_public(directory: Path) -> None:
    """Create a directory and its parents with mode 0755, less the umask."""
    with disk_errors(directory):
        for path in (*reversed(directory.parents), directory):
            if not path.is_dir():
                path.mkdir(mode=0o755, exist_ok=True)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Raise `StateError` with this path for an `OSError` in the block."""
    try:
        yield
    except OSError as error:
        raise state_problem(error, path) from error


@contextmanager
def input_errors(path: Path) -> Iterator[None]:
    """Raise `InvalidInputError` with this path for an `OSError` in a block that reads input."""
    try:
        yield
    except OSError as error:
        raise InvalidInputError(f"cannot be read: {error.strerror}", where=str(path)) from error


def state_problem(error: OSError, path: Path) -> StateError:
    """Return the `StateError` for a failed disk operation."""
    hints = {
        errno.ENOSPC: "free some space and run the command again",
        errno.EDQUOT: "free some space and run the command again",
        errno.EROFS: "the file system is read-only",
        **dict.fromkeys((errno.EACCES, errno.EPERM), ROOT_HINT),
    }
    hint = hints.get(error.errno or 0, "")
    return StateError(error.strerror or str(error), where=str(path), hint=hint)


def list_names(directory: Path) -> list[str]:
    """Return the names in a directory, unsorted; none if there is no such directory."""
    with disk_errors(directory), suppress(FileNotFoundError):
        return os.listdir(directory)  # noqa: PTH208 - glob hides errors, paths cost 5 times more
    return []


def make_private(directory: Path) -> None:
    """Create a directory and its parents with mode 0700, durably."""
    if directory.is_dir():
        return
    if not directory.parent.is_dir():
        make_private(directory.parent)
    with disk_errors(directory):
        directory.mkdir(mode=0o700, exist_ok=True)
        sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_filesystem(directory: Path) -> None:
    """Make the whole file system of `directory` durable: one call for many files."""
    import ctypes  # Python has no binding for syncfs(2)

    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if libc.syncfs(fd) != 0:
            number = ctypes.get_errno()
            raise state_problem(OSError(number, os.strerror(number)), directory)
    finally:
        os.close(fd)


def remove_tree(path: Path) -> None:
    """Remove a tree whose files are read-only."""
    with disk_errors(path):
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.exists():
            _empty(path)
            path.rmdir()
    if path.exists():
        raise StateError("could not be removed", where=str(path))


def _empty(directory: Path) -> None:
    """Remove everything in a directory, however deep.

    Directories inside a subdirectory are renamed to the top before the subdirectory is removed: no
    recursion, no path of more than two names, at most two open directories.
    """
    fresh = f".removed-{os.urandom(6).hex()}"
    count = 0
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    top = os.open(directory, flags)
    try:
        while names := os.listdir(top):  # noqa: PTH208 - of a descriptor
            for name in names:
                if not stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
                    os.unlink(name, dir_fd=top)
                    continue
                inner = os.open(name, flags, dir_fd=top)
                try:
                    for child in os.listdir(inner):  # noqa: PTH208
                        status = os.stat(child, dir_fd=inner, follow_symlinks=False)
                        if stat.S_ISDIR(status.st_mode):
                            count += 1
                            new = f"{fresh}-{count}"
                            os.rename(child, new, src_dir_fd=inner, dst_dir_fd=top)
                        else:
                            os.unlink(child, dir_fd=inner)
                finally:
                    os.close(inner)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)


def replace_link(link: Path, target: Path) -> None:
    """Point `link` at `target` durably; a reader sees the old target or the new one.

    Raises:
        StateError: The disk fails, or `link` is not a symlink.
    """
    temporary = _temporary(link)
    with ExitStack() as cleanup, disk_errors(link):
        cleanup.callback(temporary.unlink, missing_ok=True)
        temporary.symlink_to(target)
        if link.exists() and not link.is_symlink():
            raise StateError(
                "is a directory, not a link into the store",
                where=str(link),
                hint="move it away: its source is fetched from git now",
            )
        temporary.rename(link)
        sync_directory(link.parent)


def write_durably(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace `path` by `data` durably; a reader sees the old or the new bytes."""
    replace_file(path, data, mode=mode)
    with disk_errors(path):
        sync_directory(path.parent)


def replace_file(path: Path, data: bytes, *, mode: int) -> None:
    """Replace `path` by `data`, without a sync of the directory; readers see old or new bytes.

    The temporary name is random, and a symlink of that name is not followed: another user may own
    the directory.
    """
    _replace(path, iter([data]), mode=mode)


def _temporary(path: Path) -> Path:
    """Return a new name beside a path, for what is to replace it."""
    return path.with_name(f".{path.name[:200]}.{os.urandom(6).hex()}")


def _replace(path: Path, chunks: Iterator[bytes], *, mode: int) -> None:
    temporary = _temporary(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(temporary, flags, mode)
        try:
            for data in chunks:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
            os.fchmod(fd, mode)
            os.fsync(fd)
        finally:
            os.close(fd)
        temporary.rename(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise state_problem(error, path) from error


def half_written(path: Path) -> list[Path]:
    """Return temporary files that crashed writers of `path` left; call it without other writers."""
    temporary = re.compile(rf"\.{re.escape(path.name[:200])}\.[0-9a-f]{{12}}")
    return [other for other in path.parent.glob(".*") if temporary.fullmatch(other.name)]


def remove_half_written(directory: Path, *, seconds: float = 0.0) -> None:
    """Remove temporary files that killed writers left in a directory.

    Args:
        seconds: The age below which a file stays, because its writer may be alive. With 0, the
            caller keeps other writers out.
    """
    for name in filter(re.compile(_TEMPORARY).fullmatch, list_names(directory)):
        path = directory / name
        with disk_errors(path), suppress(FileNotFoundError):
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and time.time() - status.st_mtime >= seconds:
                path.unlink()


def add_durably(path: Path, data: bytes, *, mode: int = 0o600) -> bool:
    """Write a new file; return `False` if it exists already."""
    temporary = _temporary(path)
    replace_file(temporary, data, mode=mode)
    with ExitStack() as cleanup, disk_errors(path), suppress(FileExistsError):
        cleanup.callback(temporary.unlink, missing_ok=True)
        path.hardlink_to(temporary)
        sync_directory(path.parent)
        return True
    return False


def publish(source: Path, target: Path, *, mode: int) -> None:
    """Copy a large file to a user's path: whole and durable, or not at all."""
    with disk_errors(target):
        with source.open("rb") as file:
            _replace(target, iter(lambda: file.read(CHUNK), b""), mode=mode)
        sync_directory(target.parent)


def remove(path: Path) -> None:
    """Remove `path` durably; a missing file is fine."""
    with disk_errors(path), suppress(FileNotFoundError):
        path.unlink(missing_ok=True)
        sync_directory(path.parent)


def write_json(path: Path, value: object, *, mode: int = 0o600) -> None:
    """Write a value as JSON durably."""
    write_durably(path, (json.dumps(value, indent=2) + "\n").encode(), mode=mode)


T = TypeVar("T")


class ReloadedFiles(Generic[T]):
    """A value made from files; if `make` raises, the next call tries again."""

    def __init__(self, files: Iterable[Path], make: Callable[[], T]) -> None:
        self._files = tuple(files)
        self._make = make
        self._made: tuple[object, T] | None = None

    def __call__(self) -> T:
        stamp = tuple(_stamp(path) for path in self._files)
        if self._made is None or self._made[0] != stamp:
            self._made = stamp, self._make()
        return self._made[1]


def _stamp(path: Path) -> tuple[int, int, int]:
    with input_errors(path):
        status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size
