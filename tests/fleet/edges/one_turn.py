"""React in a separate process, with a real inbox; the test that starts it kills it at some call.

python -m tests.fleet.edges.one_turn DIRECTORY
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from localpuppet.base.errors import LocalpuppetError
from localpuppet.fleet.triggers.cause import RunCause
from localpuppet.fleet.triggers.inbox import Inbox
from tests.fleet.edges.reacting_node import Rig

# A disk that refuses a call accepts the next one: the reactor tries again, and once more.
TURNS = 3


class Node(Rig):
    """A node whose host writes causes down, as an agent does."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.inbox = Inbox(directory / "inbox.sqlite", self.clock)

    def react(self, causes: Sequence[RunCause]) -> None:
        fresh = [one for one in causes if not self.inbox.seen(one.id)]
        self.inbox.accept([(one, one.timestamp + 3600) for one in fresh])

    def turns(self) -> None:
        """React, as an agent that has just begun."""
        reactor = self.reactor()
        for _ in range(TURNS):
            try:
                reactor.catch_up()
                reactor.act(reactor.look())
            except LocalpuppetError as error:
                self.log.info(str(error))


if __name__ == "__main__":
    Node(Path(sys.argv[1])).turns()
