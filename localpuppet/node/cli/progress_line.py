"""The progress line below a verb's output.

- It is one line, cut to the terminal's width, because rich removes a longer one together with the
  lines above it.
- A lost terminal ends nothing.
"""

import io
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from rich.console import Console
from rich.text import Text

from localpuppet.base.formats.text import one_line

_SPINNER = 2  # columns in front of the title, with the blank


class _Unbreakable(io.StringIO):
    """A stream whose reader may vanish, so that a lost terminal does not end a run."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()


class ProgressLine:
    def __init__(self, stream: TextIO, title: str) -> None:
        self.title: Callable[[], str] = lambda: title
        self._console = Console(file=_Unbreakable(stream), highlight=False)
        self._status = self._console.status(self._line(""))

    def start(self) -> None:
        self._status.start()

    def stop(self) -> None:
        self._status.stop()

    def show(self, more: str) -> None:
        """Show the current title and the progress."""
        self._status.update(self._line(more))

    def _line(self, more: str) -> Text:
        width = self._console.width - _SPINNER
        line = Text(one_line(self.title()))
        line.truncate(max(width - len(more) - 2, 1), overflow="ellipsis")
        line.append(f" {more}", style="dim")
        line.truncate(max(width - 1, 1), overflow="ellipsis")
        return line
