"""The port through which a rollout is written down, and hears what others say of it.

Implementation: `wiring.rollout.Timed`, over `orchestrator.rollout.journal`.
"""

from datetime import datetime
from typing import Protocol

from localpuppet.orchestrator.rollout.events import Event
from localpuppet.orchestrator.rollout.words import Word


class Notes(Protocol):
    """Where events are written down."""

    def append(self, *events: Event) -> None:
        """Write events down; all are on the disk afterwards, or none is and this raises."""
        ...

    def now(self) -> datetime:
        """Return the time, UTC, by the clock that events are written down with."""
        ...

    def said(self, after: int) -> list[tuple[int, Word, str]]:
        """Return what was said after a number, in other processes; see `journal.Journal.said`."""
        ...
