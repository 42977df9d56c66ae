"""The port through which a rollout is written down, and hears what others say of it.

Implementation: `rollout.wiring.rollout.Timed`, over `orchestrator.rollout.journal`.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from localpuppet.rollout.execution.events import Event
from localpuppet.rollout.execution.words.word import Said


class Notes(Protocol):
    """Where events are written down."""

    def append(self, *events: Event) -> None:
        """Write events down; all are on the disk afterwards, or none is and this raises."""
        ...

    def now(self) -> datetime:
        """Return the time, UTC, by the clock that events are written down with."""
        ...

    async def hear(self, take: Callable[[Said], str]) -> None:
        """Hand over what people say, for as long as this is awaited.

        Args:
            take: Takes a word; returns why not, or an empty text when it is written down.
        """
        ...
