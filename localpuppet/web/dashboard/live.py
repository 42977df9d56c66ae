"""Changes as server-sent events: the number of the change and the changed nodes.

- A page that receives an event loads itself again, if it shows one of the nodes.
- All pages receive an event together, so that they share answers, at most every `PAUSE` seconds.
- After a pause or a lost connection a page sends the last number that it received
  (`Last-Event-ID`), and gets the missed changes at once.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field

from localpuppet.web.dashboard.fleet import ChangeLog

# Seconds that changes are gathered for, at least between two events, and at most between two lines.
GATHER = 0.2
PAUSE = 2.0
ALIVE = 15.0
# Names in an event; for more, the event means that anything may have changed.
MOST_NAMES = 200
MOST_STREAMS = 300


@dataclass(slots=True, eq=False)
class Live:
    """Sends changes to pages.

    Attributes:
        changes: The changes of the fleet.
        leave: Set when the dashboard ends.
        pause: Minimum seconds between two events.
        alive: Maximum seconds between two lines.
        most: Maximum number of listeners.
    """

    changes: ChangeLog
    leave: asyncio.Event
    _: KW_ONLY
    pause: float = PAUSE
    alive: float = ALIVE
    most: int = MOST_STREAMS
    _streams: int = field(default=0, init=False)
    _gathering: "asyncio.Task[None] | None" = field(default=None, init=False)
    _sent_at: float = field(default=float("-inf"), init=False)
    _last_event: tuple[tuple[int, int], str] = field(default=((-1, -1), ""), init=False)

    @property
    def full(self) -> bool:
        """Whether the limit of listeners is reached."""
        return self._streams >= self.most

    async def events(
        self, seen: int | None, *, stays: Callable[[], bool] = lambda: True
    ) -> AsyncIterator[str]:
        """Yield the text of events until the dashboard ends; nothing if the limit is reached.

        Args:
            seen: The number of the last received change; `None` for the current one.
            stays: Returns whether the listener still has access; called before each further event.
        """
        if self.full:
            return  # many asked at the same moment, when it was not
        self._streams += 1
        leaving = asyncio.create_task(self.leave.wait())
        try:
            at = self.changes.revision if seen is None else seen
            # A number that is not there yet is another server's, before a start.
            if at > self.changes.revision:
                at = -1
            yield f"retry: 2000\nid: {self.changes.revision if seen is None else at}\n\n"
            while not self.leave.is_set():
                if self.changes.revision <= at:
                    await self._wait(at, leaving)
                    if self.changes.revision <= at:
                        if not stays():
                            return
                        yield ": alive\n\n"
                        continue
                    await self._gathered(leaving)
                if not stays():
                    return
                text = self._event(at)
                at = self.changes.revision
                yield text
        finally:
            leaving.cancel()
            self._streams -= 1

    async def _gathered(self, leaving: "asyncio.Task[bool]") -> None:
        """Wait until the next event, which is the same moment for all listeners, or the end."""
        if self._gathering is None or self._gathering.done():
            self._gathering = asyncio.create_task(self._gather())
        await asyncio.wait([self._gathering, leaving], return_when=asyncio.FIRST_COMPLETED)

    async def _gather(self) -> None:
        now = asyncio.get_running_loop().time
        await asyncio.sleep(max(GATHER, self._sent_at + self.pause - now()))
        self._sent_at = now()

    def _event(self, seen: int) -> str:
        """Return the event after a change, shared by listeners with the same last change."""
        between = seen, self.changes.revision
        if self._last_event[0] != between:
            names = None if seen < 0 else self.changes.since(seen)
            self._last_event = between, event(self.changes.revision, names)
        return self._last_event[1]

    async def _wait(self, seen: int, leaving: "asyncio.Task[bool]") -> None:
        """Wait for a change, the end, or the time of the next keep-alive line."""
        changed = asyncio.create_task(self.changes.changed(seen))
        try:
            await asyncio.wait(
                [changed, leaving], timeout=self.alive, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            changed.cancel()


def event(number: int, names: set[str] | None) -> str:
    """Return the text of an event.

    Args:
        number: The number of the change.
        names: The nodes that changed; `None` if any node may have changed.
    """
    few = sorted(names) if names is not None and len(names) <= MOST_NAMES else None
    return f"id: {number}\ndata: {json.dumps({'nodes': few})}\n\n"


def event_number(headers: Mapping[str, str]) -> int | None:
    """Return the number of the last event that a page received; `None` without one."""
    text = headers.get("last-event-id", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None
