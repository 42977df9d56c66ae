"""The journal of a rollout that this process carries out, with the machine's clock and ears.

Owns: that an event has the time at which it is written. Refuses to know: what events and words
mean.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

from localpuppet.base.formats.times import show_time
from localpuppet.base.machine.ports import Clock
from localpuppet.rollout.execution.events import Event
from localpuppet.rollout.execution.words.hearing import BusEars, JournalEars
from localpuppet.rollout.execution.words.word import Said


class Journal(Protocol):
    """What is asked of a rollout's journal; see `journal.Journal`."""

    def append(self, *events: Event, at: str) -> None:
        """Write events down: all of them or none."""
        ...


class Timed:
    """A journal whose events have the time at which they are written.

    Args:
        journal: The journal.
        clock: The machine's clock.
        changed: Called after each write.
        ears: Hear what people say.
    """

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        *,
        changed: Callable[[], None],
        ears: Sequence[JournalEars | BusEars],
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._changed = changed
        self._ears = ears

    def append(self, *events: Event) -> None:
        """Write events down; see `notes.Notes`."""
        self._journal.append(*events, at=show_time(self._clock.now()))
        self._changed()

    def now(self) -> datetime:
        """Return the time; see `notes.Notes`."""
        return self._clock.now()

    async def hear(self, take: Callable[[Said], str]) -> None:
        """Hand over what people say; see `notes.Notes`."""
        async with asyncio.TaskGroup() as group:
            for one in self._ears:
                group.create_task(one.hear(take))
