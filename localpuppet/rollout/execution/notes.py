"""The port to a rollout's journal and to the commands that operators send.

Implementation: `commands.recording.TimestampedJournal`.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from localpuppet.rollout.execution.commands.command import SentCommand
from localpuppet.rollout.execution.events import Event


class EventRecorder(Protocol):
    """Records the events of a rollout, and receives commands for it."""

    def append(self, *events: Event) -> None:
        """Append events: all are on the disk afterwards, or none is and this raises."""
        ...

    def now(self) -> datetime:
        """Return the time that the next event gets, UTC."""
        ...

    async def hear(self, take: Callable[[SentCommand], str]) -> None:
        """Deliver operators' commands, for as long as this is awaited.

        Args:
            take: Takes a command; returns why it is rejected, or empty once it is recorded.
        """
        ...
