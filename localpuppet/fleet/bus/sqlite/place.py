"""The place of the SQLite bus: whose directory it is, and the empty file with the right mode.

Owns: whether a place is ours to open, and what root refuses to open. Refuses to know: SQLite.

Invariant: root opens no database in a place that another user could exchange. A file of SQLite's
is a program (views, triggers), has neighbours that are found by name, and a name can become a link
between any look and the opening.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from localpuppet.base.errors import InvalidInputError, StateError, UnavailableError
from localpuppet.base.machine.files import make_private, sync_directory
from localpuppet.base.machine.ownership import users_of_root

# As the kernel counts links of one name.
MAX_LINKS = 40


def other_owner(directory: Path) -> int | None:
    """Return who could exchange what stands in a directory, if root is to open something there.

    Looked at is all that the name leads through, as far as it is there, links too: the owner of
    one directory can put another in the place of the next.

    Returns:
        The id of the first other user on the way; `None` where there is none, or we are not root.

    Raises:
        InvalidInputError: A directory on the way can be written by others.
        UnavailableError: The way cannot be looked at.
    """
    if os.geteuid() != 0:
        return None
    ours = users_of_root()
    try:
        for path, status in _way(directory):
            if status.st_uid not in ours:
                return status.st_uid
            # In a sticky directory, /tmp say, what is ours cannot be moved by others.
            if stat.S_ISDIR(status.st_mode) and not status.st_mode & stat.S_ISVTX:
                _refuse_writable(path, status)
    except OSError as error:
        raise UnavailableError(error.strerror or str(error), where=str(directory)) from error
    return None


def make_file(path: Path) -> None:
    """Make the file, private; SQLite gives its other files the same mode and owner.

    An existing one is not opened here: closing it would drop the locks of this process on it.

    Raises:
        InvalidInputError: Others can write the directory; or we are root, and the directory or the
            file is another user's.
        UnavailableError: The directory cannot be made.
        OSError: The file cannot be made.
    """
    try:
        make_private(path.parent)
    except StateError as error:
        raise UnavailableError(error.what, where=error.where, hint=error.hint) from error
    _refuse_writable(path.parent, path.parent.stat())
    owner = other_owner(path.parent)
    if owner is not None:
        raise InvalidInputError(
            f"can be exchanged by user id {owner}, and is not opened by root", where=str(path)
        )
    with suppress(FileExistsError):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.close(fd)
        sync_directory(path.parent)
    _refuse_left(path)


def _refuse_writable(path: Path, status: os.stat_result) -> None:
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InvalidInputError(
            f"can be written by others (mode {stat.S_IMODE(status.st_mode):04o})",
            where=str(path),
            hint=f"chmod go-w {path}",
        )


def _refuse_left(path: Path) -> None:
    """Refuse, as root, a file that another user left in a directory that has become root's."""
    status = path.lstat()
    if os.geteuid() == 0 and status.st_uid not in users_of_root():
        raise InvalidInputError(
            f"belongs to user id {status.st_uid}, and is not opened by root",
            where=str(path),
            hint="move it away: a new one is made",
        )


def _way(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield what a name leads through, as far as it is there: directories and links."""
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
            raise UnavailableError("leads through too many links", where=str(directory))
        target = path.readlink()
        if target.is_absolute():
            here = Path("/")
        rest.extend(part for part in reversed(target.parts) if part != "/")
