"""The journal of a rollout that this process controls, with the machine's clock and commands."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime

from localpuppet.base.formats.times import show_time
from localpuppet.base.machine.ports import Clock
from localpuppet.rollout.execution.commands.command import SentCommand
from localpuppet.rollout.execution.commands.reading import BusCommandReader, JournalCommandReader
from localpuppet.rollout.execution.events import Event
from localpuppet.rollout.execution.journal import JournalWriter


@dataclass(frozen=True, slots=True)
class TimestampedJournal:
    """A journal whose events have the time of their writing."""

    journal: JournalWriter
    clock: Clock
    _: KW_ONLY
    changed: Callable[[], None]
    ears: Sequence[JournalCommandReader | BusCommandReader]

    def append(self, *events: Event) -> None:
        """Append events; see `notes.EventRecorder`."""
        self.journal.append(*events, at=show_time(self.clock.now()))
        self.changed()

    def now(self) -> datetime:
        """Return the time; see `notes.EventRecorder`."""
        return self.clock.now()

    async def hear(self, take: Callable[[SentCommand], str]) -> None:
        """Deliver commands; see `notes.EventRecorder`."""
        async with asyncio.TaskGroup() as group:
            for ear in self.ears:
                group.create_task(ear.hear(take))
