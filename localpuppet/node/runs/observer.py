"""The port to observers of a run, and an observer that writes notes only."""

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from localpuppet.base.formats.text import one_line


class Observer(Protocol):
    """An observer of a run, for example a terminal or a log."""

    def command(self, text: str) -> None:
        """Take the command line, before Puppet starts."""

    def line(self, text: str) -> None:
        """Take a line of Puppet's output, already printable."""

    def tick(self, seconds: float) -> None:
        """Learn that the run has been running for `seconds`."""

    def note(self, text: str) -> None:
        """Take a message of the supervisor (a warning, that it ends Puppet)."""


class NoteObserver:
    """An `Observer` and a `Progress` that writes only notes, to standard error."""

    def __init__(self, _title: str = "") -> None:
        return

    def command(self, text: str) -> None:
        """Ignore the command line."""

    def line(self, text: str) -> None:
        """Ignore a line of output."""

    def begin(self) -> None:
        """Ignore the beginning."""

    def tick(self, seconds: float) -> None:
        """Ignore the time."""

    def count(self, done: int, total: int, things: str) -> None:
        """Ignore the progress."""

    def title(self, text: Callable[[], str]) -> None:
        """Ignore the title."""

    def note(self, text: str) -> None:
        """Write a note to standard error; a closed pipe does not end the run."""
        with suppress(OSError, ValueError):
            sys.stderr.write(f"# {one_line(text)}\n")

    def close(self) -> None:
        """Ignore the end."""
