"""A pipe from a command that keeps a bounded number of bytes.

Whatever the command writes, localpuppet holds at most `limit` + 1 bytes, and the kernel a pipe
buffer.
"""

import os

CHUNK = 65536


class OutputPipe:
    """One output stream of a command.

    Args:
        limit: Maximum number of bytes; one more is kept to detect an overflow.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._reader, False)
        self.ended = False

    @property
    def fd(self) -> int:
        """The descriptor that the command writes to."""
        return self._writer

    def fileno(self) -> int:
        """Return the descriptor for `select`."""
        return self._reader

    @property
    def flooded(self) -> bool:
        """Whether the output exceeded the limit."""
        return len(self._kept) > self._limit

    @property
    def data(self) -> bytes:
        """The bytes kept: the beginning."""
        return bytes(self._kept)

    def started(self) -> None:
        """Close the command's end, once the command has it."""
        os.close(self._writer)
        self._writer = -1

    def read(self) -> bool:
        """Read at most one chunk; return whether there was any."""
        try:
            chunk = os.read(self._reader, CHUNK)
        except BlockingIOError:
            return False
        self._kept += chunk[: self._limit + 1 - len(self._kept)]
        self.ended = not chunk
        return bool(chunk)

    def drain(self) -> None:
        """Read what a command left in the pipe, up to the limit: a survivor may write for ever."""
        while not self.flooded and self.read():
            pass

    def close(self) -> None:
        """Close both ends."""
        os.close(self._reader)
        if self._writer >= 0:
            os.close(self._writer)
