"""What the network side of an agent sends to its run side: lines, and files in a spool.

- The run side is root, and the network side is exposed to the network. So a line has nothing to act
  upon: only ids of messages that the run side reads and verifies itself.
- An id is the SHA-256 of the message's bytes.
- The directory belongs to the network side's user and is as trustworthy as the network. Its
  contents may get lost: the bus keeps messages until the agent takes them.
- The reader opens no symlink, FIFO or device, and no file of another user or with a second link. It
  reads at most the size limit, and returns bytes only if their SHA-256 is the file's name.
"""

import errno
import hashlib
import json
import os
import re
import stat
from enum import StrEnum
from pathlib import Path
from typing import NewType

from localpuppet.base.errors import IntegrityError, InvalidInputError
from localpuppet.base.formats.strict_json import parse_object
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.files import make_private, replace_file
from localpuppet.base.value import Value
from localpuppet.fleet.trust.signing import MAX_TOKEN

MessageId = NewType("MessageId", str)

MAX_IDS = 64
MAX_LINE = 8 * 1024
_ID = re.compile(r"[0-9a-f]{64}\Z")
_WHERE = "network side"


class RequestKind(StrEnum):
    """The requests of the network side."""

    HELLO = "hello"  # return the node's name and key
    RECEIVE = "receive"  # take these triggers
    SERVE = "serve"  # execute this request
    DESCRIBE = "describe"  # return the signed description of the node
    CONTENDED = "contended"  # note that another agent publishes as this node
    FOLLOW = "follow"  # send a line on each change of that, until the connection ends


_IDS = {RequestKind.RECEIVE: MAX_IDS, RequestKind.SERVE: 1}


def message_id(message: bytes) -> MessageId:
    """Return the id of a message."""
    return MessageId(hashlib.sha256(message).hexdigest())


class SplitMessage(Value):
    """One line.

    Attributes:
        ids: The ids of its messages: up to `MAX_IDS` for `receive`, one for `serve`, else none.
    """

    verb: RequestKind
    ids: tuple[MessageId, ...] = ()

    @classmethod
    def parse(cls, line: bytes) -> "SplitMessage":
        """Parse a line.

        Raises:
            InvalidInputError: The line is malformed.
        """
        raw = parse_object(line, where=_WHERE, limit=MAX_LINE)
        verb_text = raw.get("verb")
        if verb_text not in list(RequestKind):
            raise InvalidInputError("has an unknown verb", where=_WHERE)
        verb = RequestKind(str(verb_text))
        most = _IDS.get(verb, 0)
        if set(raw) != ({"verb", "ids"} if most else {"verb"}):
            raise InvalidInputError(f"{verb} has unexpected fields", where=_WHERE)
        return cls(verb=verb, ids=_ids(raw["ids"], most) if most else ())

    def line(self) -> bytes:
        """Return the line, with its newline."""
        ids = {"ids": list(self.ids)} if self.verb in _IDS else {}
        return json.dumps({"verb": self.verb.value, **ids}).encode() + b"\n"


def _ids(value: Json, most: int) -> tuple[MessageId, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= most:
        raise InvalidInputError(f"ids must be a list of 1 to {most}", where=_WHERE)
    ids = [item for item in value if isinstance(item, str) and _ID.match(item)]
    if len(ids) != len(value) or len(set(ids)) != len(ids):
        raise InvalidInputError(
            "ids must be different SHA-256 digests in lower-case hex", where=_WHERE
        )
    return tuple(MessageId(item) for item in ids)


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
