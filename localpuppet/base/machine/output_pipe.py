"""A pipe from a command to us, of which a bounded number of bytes is kept.

Invariant: whatever the command writes, we hold `limit` bytes and one, and the kernel what a
pipe holds.
"""

import os

CHUNK = 65536


class OutputPipe:
    """What a command writes into one of its streams.

    Args:
        limit: How many bytes are kept; one more is, so that too many can be told.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._reader, False)
        self.ended = False

    @property
    def fd(self) -> int:
        """What the command writes to."""
        return self._writer

    def fileno(self) -> int:
        """Return what `select` looks at."""
        return self._reader

    @property
    def flooded(self) -> bool:
        """Whether there was more than the limit."""
        return len(self._kept) > self._limit

    @property
    def data(self) -> bytes:
        """What is kept: the beginning."""
        return bytes(self._kept)

    def started(self) -> None:
        """Let go of the command's end, once the command has it."""
        os.close(self._writer)
        self._writer = -1

    def read(self) -> bool:
        """Take what is there, a chunk at the most; return whether there was anything."""
        try:
            chunk = os.read(self._reader, CHUNK)
        except BlockingIOError:
            return False
        self._kept += chunk[: self._limit + 1 - len(self._kept)]
        self.ended = not chunk
        return bool(chunk)

    def drain(self) -> None:
        """Take what a command has left behind; one that was not killed may write for ever."""
        while not self.flooded and self.read():
            pass

    def close(self) -> None:
        """Close both ends."""
        os.close(self._reader)
        if self._writer >= 0:
            os.close(self._writer)
