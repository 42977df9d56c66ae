"""Writes the readable output of one run to its log and to observers."""

import os
from collections.abc import Callable
from pathlib import Path

from localpuppet.base.formats.text import joined, printable
from localpuppet.base.machine.files import disk_errors
from localpuppet.node.puppet.command import is_final_error

MAX_LOG = 64 * 1024 * 1024
# Characters of an error of Puppet that are kept in memory.
MAX_ERROR = 2000


class RunLog:
    """The readable output of one run.

    If the disk is full or the output too long, the log is cut and the run continues.

    Args:
        path: The file.
        named: Returns a line in which files of the release have short names.
    """

    def __init__(self, path: Path, named: Callable[[str], str] = str) -> None:
        self.cut = ""
        self._named = named
        self.first_error = ""
        self._size = 0
        self._rest = b""
        with disk_errors(path):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._file = os.fdopen(fd, "ab", buffering=0)

    def take(self, data: bytes, line: Callable[[str], None], *, end: bool = False) -> None:
        """Write `data` with terminal escapes spelt out, and pass its whole lines to `line`.

        Args:
            data: Raw output.
            line: Called with each line, printable, without its newline.
            end: Whether no data follows: an unfinished line then counts as a line.
        """
        pieces = (self._rest + data).split(b"\n")
        self._rest = pieces.pop()
        if self._rest and (end or len(self._rest) > 65536):
            pieces.append(self._rest)
            self._rest = b""
        for piece in pieces:
            text = self._named(printable(piece.decode("utf-8", "backslashreplace")))
            if not self.first_error and is_final_error(text):
                self.first_error = joined(text.removeprefix("Error: "))[:MAX_ERROR]
            self._write(text)
            line(text)

    def _write(self, text: str) -> None:
        if self.cut:
            return
        try:
            self._size += self._file.write(f"{text}\n".encode("utf-8", "backslashreplace"))
        except OSError as error:
            self.cut = f"the log is truncated: {error.strerror}"
        if self._size > MAX_LOG:
            self.cut = f"the log is truncated: more than {MAX_LOG // 1048576} MiB"

    @property
    def full(self) -> bool:
        """Whether the log has reached its limit and drops the rest."""
        return self._size > MAX_LOG

    def close(self) -> None:
        """Close the log."""
        self._file.close()
