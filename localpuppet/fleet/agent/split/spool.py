"""The spool: files through which the network side hands messages to the run side.

- The directory belongs to the network side's user and is as trustworthy as the network. Its
  contents may get lost: the bus keeps messages until the agent takes them.
- The reader opens no symlink, FIFO or device, and no file of another user or with a second link. It
  reads at most the size limit, and returns bytes only if their SHA-256 is the file's name.
"""

import errno
import os
import stat
from pathlib import Path

from localpuppet.base.errors import IntegrityError, InvalidInputError
from localpuppet.base.machine.files import make_private, replace_file
from localpuppet.fleet.agent.split.protocol import MessageId, message_id
from localpuppet.fleet.trust.signing import MAX_TOKEN


class Spool:
    """The network side's end.

    Args:
        directory: The spool, created with mode 0700 if it is missing.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def empty(self) -> None:
        """Create the directory, and remove the files of an earlier process."""
        make_private(self._directory)
        for path in self._directory.iterdir():
            path.unlink(missing_ok=True)

    def add(self, message: bytes) -> MessageId:
        """Write a message; return its id."""
        identifier = message_id(message)
        replace_file(self._directory / identifier, message, mode=0o600)
        return identifier

    def remove(self, identifier: MessageId) -> None:
        """Remove a message if it exists."""
        (self._directory / identifier).unlink(missing_ok=True)


class SpoolReader:
    """The run side's end.

    Args:
        directory: The spool.
        owner: The user id of the network side; files of other users are rejected.
    """

    def __init__(self, directory: Path, owner: int) -> None:
        self._directory = directory
        self._owner = owner

    def read(self, identifier: MessageId) -> bytes:
        """Return a message.

        Raises:
            InvalidInputError: The file is not acceptable.
            IntegrityError: Its bytes do not match the id.
        """
        where = f"spool: {identifier[:12]}"
        try:
            directory = os.open(
                self._directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            )
            try:
                # NONBLOCK: opening a FIFO must not block before fstat detects it.
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
                fd = os.open(identifier, flags, dir_fd=directory)
            finally:
                os.close(directory)
        except OSError as error:
            link = error.errno in (errno.ELOOP, errno.ENOTDIR)
            what = "is a symlink" if link else error.strerror or str(error)
            raise InvalidInputError(f"cannot be read: {what}", where=where) from error
        try:
            self._check(os.fstat(fd), where)
            with open(fd, "rb", closefd=False) as file:
                data = file.read(MAX_TOKEN + 1)
        except OSError as error:
            what = error.strerror or str(error)
            raise InvalidInputError(f"cannot be read: {what}", where=where) from error
        finally:
            os.close(fd)
        if len(data) > MAX_TOKEN or message_id(data) != identifier:
            raise IntegrityError("its bytes are not those of its name", where=where)
        return data

    def _check(self, status: os.stat_result, where: str) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise InvalidInputError("is not a regular file", where=where)
        if status.st_uid != self._owner or status.st_nlink != 1:
            raise InvalidInputError(
                f"is not the network side's own (uid {status.st_uid}, {status.st_nlink} names)",
                where=where,
            )
        if status.st_size > MAX_TOKEN:
            raise InvalidInputError(
                f"is too large: {status.st_size} bytes, the limit is {MAX_TOKEN}", where=where
            )
