"""The directory and the empty file of the SQLite bus: ownership and modes.

Root opens no database at a path that another user could replace. A SQLite file contains code
(views, triggers) and has side files found by name, and a name can become a link between a check and
the opening.
"""

import ctypes
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from localpuppet.base.errors import InvalidInputError, StateError, UnavailableError
from localpuppet.base.machine.files import make_private, sync_directory
from localpuppet.base.machine.ownership import users_of_root

_LIBC = ctypes.CDLL(None)
_STATX_BTIME, _BTIME_OFFSET = 0x800, 80  # statx(2)
# The kernel's limit of links in one path.
MAX_LINKS = 40


def other_owner(directory: Path) -> int | None:
    """Return the user who could replace files in a directory that root is to use.

    Checks everything on the path, as far as it exists, links included: the owner of one directory
    can replace the next.

    Returns:
        The id of the first other user on the path; `None` if there is no other, or as non-root.

    Raises:
        InvalidInputError: Others can write a directory on the path.
        UnavailableError: The path cannot be read.
    """
    if os.geteuid() != 0:
        return None
    ours = users_of_root()
    try:
        for path, status in _way(directory):
            if status.st_uid not in ours:
                return status.st_uid
            # In a sticky directory such as /tmp, others cannot move root's files.
            if stat.S_ISDIR(status.st_mode) and not status.st_mode & stat.S_ISVTX:
                _refuse_writable(path, status)
    except OSError as error:
        raise UnavailableError(error.strerror or str(error), where=str(directory)) from error
    return None


def make_file(path: Path) -> None:
    """Create the file, private; SQLite gives its side files the same mode and owner.

    An existing file is not opened: closing it would drop this process's locks on it.

    Raises:
        InvalidInputError: Others can write the directory; or root would use another user's
            directory or file.
        UnavailableError: The directory cannot be created.
        OSError: The file cannot be created.
    """
    _refuse_replaceable(path)
    try:
        make_private(path.parent)
    except StateError as error:
        raise UnavailableError(error.what, where=error.where, hint=error.hint) from error
    _refuse_writable(path.parent, path.parent.stat())
    _refuse_replaceable(path)  # another user could have created a missing directory in /tmp
    with suppress(FileExistsError):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.close(fd)
        sync_directory(path.parent)
    _refuse_left(path)


def file_identity(path: Path) -> str:
    """Return what no copy of a file has: its inode, and when that was created.

    Python has no call for the second, without which a copy may get the inode of a removed file.
    """
    status = ctypes.create_string_buffer(256)
    born = (0, 0)
    if _LIBC.statx(-100, os.fsencode(path), 0, _STATX_BTIME, status) == 0:
        born = struct.unpack_from("=qI", status, _BTIME_OFFSET)
    return ".".join(map(str, (path.stat().st_ino, *born)))


def _refuse_writable(path: Path, status: os.stat_result) -> None:
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InvalidInputError(
            f"can be written by others (mode {stat.S_IMODE(status.st_mode):04o})",
            where=str(path),
            hint=f"chmod go-w {path}",
        )


def _refuse_replaceable(path: Path) -> None:
    """Reject, as root, a file that another user can replace; see `other_owner`."""
    owner = other_owner(path.parent)
    if owner is not None:
        raise InvalidInputError(
            f"user id {owner} can replace this file, so root does not open it",
            where=str(path),
            hint="set 'buses.sqlite.path' to a path in directories of root",
        )


def _refuse_left(path: Path) -> None:
    """Reject, as root, a file that another user left in a directory that is now root's."""
    status = path.lstat()
    if os.geteuid() == 0 and status.st_uid not in users_of_root():
        raise InvalidInputError(
            f"belongs to user id {status.st_uid}, and is not opened by root",
            where=str(path),
            hint="move it away: localpuppet creates a new one",
        )


def _way(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the existing directories and links that a path leads through."""
    here = Path("/")
    rest = list(reversed(directory.absolute().parts[1:]))
    links = 0
    yield here, here.lstat()
    while rest:
        name = rest.pop()
        if name == "..":
            here = here.parent
            continue
        path = here / name
        try:
            status = path.lstat()
        except FileNotFoundError:
            return
        yield path, status
        if not stat.S_ISLNK(status.st_mode):
            here = path
            continue
        links += 1
        if links > MAX_LINKS:
            raise UnavailableError("has too many symlinks", where=str(directory))
        target = path.readlink()
        if target.is_absolute():
            here = Path("/")
        rest.extend(part for part in reversed(target.parts) if part != "/")
