"""Which files and directories root trusts: those that no other user can write.

- The owner is root or the user behind sudo.
- Others cannot write it, and no access control list could let them.
- A group may write only if it is the private group of a trusted user: it has that user's name, is
  that user's primary group, and has no other member. This applies to group 0 as well: some systems
  put other accounts in it.
"""

import errno
import os
import stat
from collections.abc import Collection
from pathlib import Path

from localpuppet.base.errors import InvalidInputError

_ACL = "system.posix_acl_access"
_NAMED = 10  # files that a message names


class ForeignFileError(InvalidInputError):
    """Other users could write a file that root would use."""


def refuse_foreign(file: Path | int, *, where: str = "", owners: Collection[int] = ()) -> None:
    """Reject, as root, a file or directory that other users could write.

    Args:
        file: Its path, or a descriptor.
        where: Its place, for messages; the path by default.
        owners: Users whose files root accepts besides its own.

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
            hint=f"chown root {where}; chmod go-w {where}",
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
            hint=f"chown -R root {directory}; chmod -R go-w {directory}",
        )


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
