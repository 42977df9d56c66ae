"""localpuppet with a planted bug, to test whether the history checker finds it.

python -m tests.simulation.planted_agent BUG WORD...
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from localpuppet.fleet.agent.agent import Agent
from localpuppet.fleet.agent.fork_runner import CommandRunner
from localpuppet.fleet.bus import key_value
from localpuppet.fleet.bus.key_value import Change, KeyListing, KeyValueEntry
from localpuppet.fleet.triggers import sending
from localpuppet.fleet.triggers.cause import RunCause
from localpuppet.fleet.triggers.coalescing import Path
from localpuppet.fleet.triggers.inbox import Inbox
from localpuppet.main import main


def nothing_on_the_disk() -> None:
    """The agent reports an accepted cause, but does not write it to disk."""

    def accept(_self: Inbox, _causes: Sequence[tuple[RunCause, int]]) -> None:
        return

    _plant(Inbox, "accept", accept)


def no_listing() -> None:
    """The agent reads new messages, but none from before its start."""
    entries = key_value.entries

    def only_news(change: Change) -> Sequence[KeyValueEntry]:
        return [] if isinstance(change, KeyListing) else entries(change)

    _plant(key_value, "entries", only_news)


def two_at_once() -> None:
    """The agent starts a run during another run."""
    from localpuppet.fleet.agent import fork_runner

    class Free:
        fd = 2

        @staticmethod
        def take(_path: object) -> "Free":
            return Free()

        def release(self) -> None:
            return

    _plant(fork_runner, "Flock", Free)


def no_end_of_loops() -> None:
    """The agent sends to each receiver, even if the path already has the receiver."""

    def next_path(known: Iterable[Path], *, me: Any, receiver: Any) -> Path:
        _ = receiver
        return (*next(iter(known), ()), me)

    _plant(sending, "next_path", next_path)


def _plant(where: object, name: str, bug: object) -> None:
    setattr(where, name, bug)


BUGS: dict[str, Callable[[], None]] = {
    bug.__name__: bug for bug in (nothing_on_the_disk, no_listing, two_at_once, no_end_of_loops)
}

if __name__ == "__main__":
    _ = (Agent, CommandRunner)
    BUGS[sys.argv[1]]()
    sys.exit(main(sys.argv[2:]))
