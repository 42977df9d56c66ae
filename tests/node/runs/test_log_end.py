"""The end of a log: reading it in pieces gives the same result as line by line."""

import io
import random

import pytest

from localpuppet.node.puppet.changes import Diffs
from localpuppet.node.runs.run_replies import LogEnd, LogExcerpt, weight

SOURCE = "Notice: /Stage[main]/Main/File[/x]/content: "
LINES = [
    SOURCE,
    SOURCE.rstrip(),
    f"{SOURCE}content changed",
    "--- /x",
    "+secret",
    "",
    "Notice: done",
    "reading:",
    "λ" * 30,
    "x" * 90,
    '"quoted"',
    "a\rb",
    f"{SOURCE}\r",
]


def line_by_line(data: bytes, *, most: int, longest: int) -> LogExcerpt:
    """Return the end of a log, read line by line."""
    text = data.decode("utf-8", "backslashreplace")
    whole = [line.rstrip("\n") for line in io.StringIO(text, newline=None)]
    kept = list(Diffs().without(whole))
    lines: list[str] = []
    room = most
    for line in reversed([one if len(one) <= longest else f"{one[:longest]}…" for one in kept]):
        room -= weight(line)
        if room < 0:
            break
        lines.insert(0, line)
    return LogExcerpt(lines=lines, before=len(kept) - len(lines), left_out=len(whole) - len(kept))


@pytest.mark.parametrize("piece", [1, 7, 64, 300, 10_000])
def test_the_end_of_a_log_does_not_depend_on_the_size_of_pieces(piece: int) -> None:
    chance = random.Random(piece)  # noqa: S311 - the same logs each time
    for _ in range(60):
        data = "\n".join(chance.choices(LINES, k=chance.randrange(80))).encode()
        data += chance.choice([b"", b"\n", b"\xff\n", b"\n\n"])
        sizes = {"most": chance.choice([50, 400, 5000]), "longest": chance.choice([20, 80])}
        end = LogEnd(**sizes, piece=piece).read(io.BytesIO(data))
        assert end == line_by_line(data, **sizes), (data, sizes)


class Log(io.BytesIO):
    """A log that counts calls of `readline`."""

    looked = 0

    def readline(self, size: int | None = -1, /) -> bytes:
        self.looked += 1
        return super().readline(size)


def test_a_long_log_is_not_split_into_lines() -> None:
    """Lines far before the end are counted in pieces."""
    log = Log(b"Notice: some message\n" * 100_000)
    end = LogEnd(most=1000, longest=200).read(log)
    assert (len(end.lines) + end.before, end.left_out) == (100_000, 0)
    assert log.looked < 20
