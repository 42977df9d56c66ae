"""The port to whoever watches a run."""

from typing import Protocol


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
