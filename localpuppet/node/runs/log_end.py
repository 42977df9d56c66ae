"""Reads the end of a run's log as it may leave the node: without the contents of files.

- Only the lines before a line show whether it is content of a file (`puppet.log_lines`), so the log
  is read from its beginning. A piece without any part of a diff is not split into lines.
- Memory holds only the last pieces: as much as is returned, and one piece more.
"""

import json
from collections import deque
from collections.abc import Iterator
from io import BufferedIOBase
from itertools import chain

from localpuppet.base.value import Value
from localpuppet.node.puppet.log_lines import Diffs

PIECE = 256 * 1024


class LogExcerpt(Value):
    """The end of a log.

    Attributes:
        lines: The lines.
        before: How many lines precede them.
        left_out: How many lines are contents of files.
    """

    lines: list[str]
    before: int
    left_out: int


class _Piece(Value):
    """Some lines, as bytes or cut already; as JSON they take at least `least` bytes."""

    lines: bytes | list[str]
    count: int
    least: int


class LogEnd:
    """Reads the end of logs.

    Args:
        most: How many bytes are returned at most, as JSON.
        longest: Characters of a line; a longer line is cut.
        piece: Bytes of a log that are read at a time.
    """

    def __init__(self, *, most: int, longest: int, piece: int = PIECE) -> None:
        self._most = most
        self._longest = longest
        self._size = piece

    def read(self, log: BufferedIOBase) -> LogExcerpt:
        """Return the end of a log.

        Raises:
            OSError: It cannot be read.
        """
        diffs = Diffs()
        held: deque[_Piece] = deque()
        size = before = left_out = 0
        for data in self._pieces(log):
            piece = self._piece(data, diffs)
            left_out += _count(data) - piece.count
            held.append(piece)
            size += piece.least
            while size - held[0].least >= self._most:
                size -= held[0].least
                before += held.popleft().count
        lines = self._last(held)
        before += sum(piece.count for piece in held) - len(lines)
        return LogExcerpt(lines=lines, before=before, left_out=left_out)

    def _piece(self, data: bytes, diffs: Diffs) -> _Piece:
        if diffs.may_be_in(data) or not self._is_short(data):
            lines = [self._cut(line) for line in diffs.without(_lines(data))]
            return _Piece(lines=lines, count=len(lines), least=sum(map(len, lines)))
        return _Piece(lines=data, count=_count(data), least=len(data))

    def _pieces(self, log: BufferedIOBase) -> Iterator[bytes]:
        """Yield whole lines, each with its newline."""
        while data := log.read(self._size):
            data += b"" if data.endswith(b"\n") else log.readline()
            yield data if data.endswith(b"\n") else data + b"\n"

    def _is_short(self, data: bytes) -> bool:
        """Return whether the data certainly has no line that must be cut."""
        half = self._longest // 2
        return all(data.find(b"\n", at, at + half) >= 0 for at in range(0, len(data), half))

    def _last(self, held: deque[_Piece]) -> list[str]:
        lines: deque[str] = deque()
        room = self._most
        for line in chain.from_iterable(map(_backwards, reversed(held))):
            room -= weight(line)
            if room < 0:
                break
            lines.appendleft(line)
        return list(lines)

    def _cut(self, line: str) -> str:
        return line if len(line) <= self._longest else f"{line[: self._longest]}…"


def weight(value: object) -> int:
    """Return how many bytes a value takes as JSON in a reply."""
    return len(json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace")) + 1


def _count(data: bytes) -> int:
    return data.count(b"\n") if b"\r" not in data else len(_lines(data))


def _lines(data: bytes) -> list[str]:
    text = data.decode("utf-8", "backslashreplace")
    return text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n")


def _backwards(piece: _Piece) -> Iterator[str]:
    return reversed(_lines(piece.lines) if isinstance(piece.lines, bytes) else piece.lines)
