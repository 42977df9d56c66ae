"""Changes as server-sent events, and one rendering of a view for equal requests between them.

- A page that receives an event loads itself again, if it shows one of the nodes.
- All pages receive an event together, so that they share answers, at most every `PAUSE` seconds.
- After a pause or a lost connection a page sends the last number that it received
  (`Last-Event-ID`), and gets the missed changes at once.

An event wakes every open page, and each loads itself again: they all get one answer, as new as the
event that they name (`Last-Event-ID`). An answer has the state at its beginning. After an answer
comes a pause, and requests in between wait for the next one, so that no view occupies the server
alone.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field

from starlette.requests import Request
from starlette.responses import Response

from localpuppet.base.bounded_dict import BoundedDict
from localpuppet.base.machine.ports import Clock
from localpuppet.base.machine.waiting import retrieve_error
from localpuppet.web.access.http_limits import MAX_STREAMS
from localpuppet.web.dashboard.fleet import ChangeLog

# Seconds that changes are gathered for, at least between two events, and at most between two lines.
GATHER = 0.2
PAUSE = 2.0
ALIVE = 15.0
# Names in an event; for more, the event means that anything may have changed.
MOST_NAMES = 200


@dataclass(slots=True, eq=False)
class Live:
    """Sends changes to at most `most` pages, until `leave` is set.

    Between two events are at least `pause` seconds, between two lines at most `alive`.
    """

    changes: ChangeLog
    leave: asyncio.Event
    _: KW_ONLY
    pause: float = PAUSE
    alive: float = ALIVE
    most: int = MAX_STREAMS
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

        `seen` is the number of the last received change; `None` for the current one. Before each
        further event, `stays` returns whether the listener still has access.
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
    """Return the text of an event about nodes that changed; `None` for any node."""
    few = sorted(names) if names is not None and len(names) <= MOST_NAMES else None
    return f"id: {number}\ndata: {json.dumps({'nodes': few})}\n\n"


def event_number(headers: Mapping[str, str]) -> int | None:
    """Return the number of the last event that a page received; `None` without one."""
    text = headers.get("last-event-id", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


# Seconds, whatever did not change: facts have no number, and ages grow.
FRESH = 1.0
MOST = 16
# How many times as long as an answer took to make none is made of that view, and seconds at most.
REST, MOST_REST = 20.0, 0.8

View = Callable[[Request], Awaitable[Response]]


class _Answer:
    """One answer, with the state at its beginning.

    The previous answer (`before`) ends first, followed by a pause, unless it hangs.
    """

    def __init__(
        self,
        make: Callable[[], Awaitable[Response]],
        before: "_Answer | None",
        changes: ChangeLog,
        clock: Clock,
    ) -> None:
        self._changes = changes
        self._clock = clock
        self._begun = False
        self._revision = 0
        self._until = 0.0
        self._rests_until = 0.0
        self.task = asyncio.ensure_future(self._made(make, before))
        self.task.add_done_callback(retrieve_error)

    def has(self, revision: int) -> bool:
        """Return whether the answer is recent, and has the state of a revision."""
        if not self._begun:
            return True
        return self._revision >= revision and self._until > self._clock.monotonic()

    async def _made(
        self, make: Callable[[], Awaitable[Response]], before: "_Answer | None"
    ) -> Response:
        if before is not None:
            await asyncio.wait([before.task], timeout=MOST_REST)
            await asyncio.sleep(max(0.0, before._rests_until - self._clock.monotonic()))
        begun = self._clock.monotonic()
        self._begun, self._revision, self._until = True, self._changes.revision, begun + FRESH
        try:
            return await make()
        finally:
            now = self._clock.monotonic()
            self._rests_until = now + min(MOST_REST, REST * (now - begun))


class SharedAnswers:
    def __init__(self, changes: ChangeLog, clock: Clock) -> None:
        self._changes = changes
        self._clock = clock
        self._answers: BoundedDict[str, _Answer] = BoundedDict(MOST)

    async def answer(self, request: Request, view: View) -> Response:
        """Return the answer of a view to a URL and event, or a shared one that is up to date."""
        key = f"{request.url.path}?{request.url.query}"
        known = self._answers.get(key)
        if known is None or not known.has(self._wanted(request)):
            known = _Answer(lambda: view(request), known, self._changes, self._clock)
            self._answers[key] = known
        # One who goes away does not take the answer from the others.
        return await asyncio.shield(known.task)

    def _wanted(self, request: Request) -> int:
        """Return the revision that an answer needs: without the number of an event, the last."""
        number, last = event_number(request.headers), self._changes.revision
        return last if number is None else min(number, last)
