"""The spool: where the network side leaves messages for the run side, and how root reads them.

Owns: the directory, the names in it, and what a file there must be. Refuses to know: what the
messages say. It belongs to the network side's user and is as trustworthy as the network; nothing
in it has to survive anything, since the bus keeps what was not taken.

Invariants: the reader opens no symlink, FIFO or device, no file of another user or with a second
name, reads no more than the limit, and returns bytes only if their SHA-256 is the name.
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
        directory: The spool; made if it is not there, 0700.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def empty(self) -> None:
        """Make the directory, and remove what an earlier process left there."""
        make_private(self._directory)
        for path in self._directory.iterdir():
            path.unlink(missing_ok=True)

    def add(self, message: bytes) -> MessageId:
        """Leave a message; return its id."""
        identifier = message_id(message)
        replace_file(self._directory / identifier, message, mode=0o600)
        return identifier

    def remove(self, identifier: MessageId) -> None:
        """Take a message away again; one that is not there is fine."""
        (self._directory / identifier).unlink(missing_ok=True)


class SpoolReader:
    """The run side's end.

    Args:
        directory: The spool.
        owner: The network side's user id: nobody else's file is read.
    """

    def __init__(self, directory: Path, owner: int) -> None:
        self._directory = directory
        self._owner = owner

    def read(self, identifier: MessageId) -> bytes:
        """Return a message.

        Raises:
            InvalidInputError: The file is not one that root reads.
            IntegrityError: Its bytes are of another id.
        """
        where = f"spool: {identifier[:12]}"
        try:
            directory = os.open(
                self._directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            )
            try:
                # NONBLOCK: a FIFO must not hold us up before fstat can tell that it is one.
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
