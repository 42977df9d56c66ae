"""What is new, as server-sent events: the number of the change and the nodes it is of.

Owns: how often a page is told, and what keeps a connection alive. Refuses to know: what changed; a
page asks for itself again.

- A page that was asleep, or lost its connection, names the last number that it has seen
  (`Last-Event-ID`), and hears at once what it missed.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable

from localpuppet.web.dashboard.fleet import Fleet

# Seconds that changes are gathered for, and at most between two lines.
GATHER = 0.2
ALIVE = 15.0
# Names in an event; of more than that a page is told that anything may have changed.
MOST_NAMES = 50
MOST_STREAMS = 300


class Live:
    """Tells pages of changes.

    Args:
        fleet: What changes.
        leave: Set when the page ends.
        alive: Seconds between two lines, at most.
        most: How many may listen.
    """

    def __init__(
        self,
        fleet: Fleet,
        leave: asyncio.Event,
        *,
        alive: float = ALIVE,
        most: int = MOST_STREAMS,
    ) -> None:
        self._alive = alive
        self._most = most
        self._fleet = fleet
        self._leave = leave
        self._streams = 0
        self._told: tuple[tuple[int, int], str] = ((-1, -1), "")

    @property
    def full(self) -> bool:
        """Whether as many listen as may."""
        return self._streams >= self._most

    async def events(
        self, seen: int | None, *, stays: Callable[[], bool] = lambda: True
    ) -> AsyncIterator[str]:
        """Yield the text of events until the page ends; nothing where as many listen as may.

        Args:
            seen: The number of the last change that was seen; `None` for what is there now.
            stays: Whether the listener still may look: asked before each further event.
        """
        if self.full:
            return  # many asked at the same moment, when it was not
        self._streams += 1
        leaving = asyncio.create_task(self._leave.wait())
        try:
            at = self._fleet.revision if seen is None else seen
            # A number that is not there yet is another server's, before a start.
            if at > self._fleet.revision:
                at = -1
            yield f"retry: 2000\nid: {self._fleet.revision if seen is None else at}\n\n"
            while not self._leave.is_set():
                if self._fleet.revision <= at:
                    await self._wait(at, leaving)
                    if self._fleet.revision <= at:
                        if not stays():
                            return
                        yield ": alive\n\n"
                        continue
                    await asyncio.sleep(GATHER)
                if not stays():
                    return
                text = self._event(at)
                at = self._fleet.revision
                yield text
        finally:
            leaving.cancel()
            self._streams -= 1

    def _event(self, seen: int) -> str:
        """Return the event for those who have seen a change: most of them have seen the same."""
        between = seen, self._fleet.revision
        if self._told[0] != between:
            names = None if seen < 0 else self._fleet.since(seen)
            self._told = between, event(self._fleet.revision, names)
        return self._told[1]

    async def _wait(self, seen: int, leaving: "asyncio.Task[bool]") -> None:
        """Wait for a change, the end, or until it is time to say that we are there."""
        changed = asyncio.create_task(self._fleet.changed(seen))
        try:
            await asyncio.wait(
                [changed, leaving], timeout=self._alive, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            changed.cancel()


def event(number: int, names: set[str] | None) -> str:
    """Return the text of an event.

    Args:
        number: Of the change.
        names: The nodes that changed; `None` for whatever may have.
    """
    few = sorted(names) if names is not None and len(names) <= MOST_NAMES else None
    return f"id: {number}\ndata: {json.dumps({'nodes': few})}\n\n"
