"""The port to whoever watches a run, and the one who stands there when nobody does."""

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from localpuppet.base.formats.text import one_line


class Observer(Protocol):
    """Someone who watches a run: a terminal, a log, nobody."""

    def command(self, text: str) -> None:
        """Take the command line, before Puppet starts."""
        ...

    def line(self, text: str) -> None:
        """Take a line of Puppet's output, already printable."""
        ...

    def tick(self, seconds: float) -> None:
        """Learn that the run goes on after `seconds`."""
        ...

    def note(self, text: str) -> None:
        """Take something that the supervisor has to say (a warning, that it ends Puppet)."""
        ...


class Unseen:
    """An `Observer`, and a `Progress`, where nobody watches: only notes go to standard error."""

    def __init__(self, _title: str = "") -> None:
        return

    def command(self, text: str) -> None:
        """Take the command line."""

    def line(self, text: str) -> None:
        """Take a line of output."""

    def begin(self) -> None:
        """Take that something takes long."""

    def tick(self, seconds: float) -> None:
        """Take that it goes on."""

    def count(self, done: int, total: int, things: str) -> None:
        """Take how much is done."""

    def title(self, text: Callable[[], str]) -> None:
        """Take what goes on now; `text` is asked whenever it is shown anew."""

    def note(self, text: str) -> None:
        """Write a note to standard error; a reader that went away must not end the run."""
        with suppress(OSError, ValueError):
            sys.stderr.write(f"# {one_line(text)}\n")

    def close(self) -> None:
        """Take that it is over."""
