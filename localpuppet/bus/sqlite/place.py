"""The place of the SQLite bus: its directory, and the empty file with the right owner and mode.

Owns: what a directory must be, who gets the file, and what is not opened there. Refuses to know:
SQLite.

Invariant: as root nothing is made or changed outside of a directory because of a link that another
user, to whom the directory belongs, left in it.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path

from localpuppet.errors import InvalidInputError, StateError, UnavailableError
from localpuppet.machine.files import make_private, sync_directory


def make_file(path: Path) -> None:
    """Make the file, private; SQLite gives its other files the same mode and owner.

    An existing one is not opened here: closing it would drop the locks of this process on it.
    """
    try:
        make_private(path.parent)
    except StateError as error:
        raise UnavailableError(error.what, where=error.where, hint=error.hint) from error
    mode = path.parent.stat().st_mode
    if mode & 0o022:
        raise InvalidInputError(
            f"can be written by others (mode {mode & 0o7777:04o})",
            where=str(path.parent),
            hint=f"chmod go-w {path.parent}",
        )
    _refuse_planted(path)
    with suppress(FileExistsError):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _give_to_owner(fd, path.parent)
        finally:
            os.close(fd)
        sync_directory(path.parent)


def _refuse_planted(path: Path) -> None:
    """Refuse what another user may have put there: SQLite would follow it, and make a file.

    The directory of an agent's network side is not root's, and root's commands look there.
    """
    if path.parent.stat().st_uid in (0, os.geteuid()):
        return
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise InvalidInputError(
            "is a link or no file, in a directory of another user",
            where=str(path),
            hint="remove it; who put it there?",
        )


def _give_to_owner(fd: int, directory: Path) -> None:
    """Give a new file to the directory's owner: of an agent's two sides one is not root.

    Whoever of the two is first makes the file, and both must be able to use it.
    """
    owner = directory.stat()
    if os.geteuid() == 0 and owner.st_uid != 0:
        os.fchown(fd, owner.st_uid, owner.st_gid)
