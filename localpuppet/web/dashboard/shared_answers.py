"""Shares one rendering of a view between equal requests while nothing has changed.

An event wakes every open page, and each loads itself again: they all get one answer, as new as the
event that they name (`Last-Event-ID`). An answer has the state at its beginning. After an answer
comes a pause, and requests in between wait for the next one, so that no view occupies the server
alone.
"""

import asyncio
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from localpuppet.base.bounded_dict import BoundedDict
from localpuppet.base.machine.ports import Clock
from localpuppet.base.machine.waiting import retrieve_error
from localpuppet.web.dashboard.fleet import ChangeLog
from localpuppet.web.dashboard.live import event_number

# Seconds, whatever did not change: facts have no number, and ages grow.
FRESH = 1.0
MOST = 16
# How many times as long as an answer took to make none is made of that view, and seconds at most.
REST, MOST_REST = 20.0, 0.8

View = Callable[[Request], Awaitable[Response]]


class _Answer:
    """One answer, with the state at its beginning.

    Args:
        make: Renders it.
        before: The previous answer, which ends first, followed by a pause, unless it hangs.
        changes: The changes of the fleet.
        clock: The clock.
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
    """The shared answers.

    Args:
        changes: The changes of the fleet.
        clock: The clock.
    """

    def __init__(self, changes: ChangeLog, clock: Clock) -> None:
        self._changes = changes
        self._clock = clock
        self._answers: BoundedDict[str, _Answer] = BoundedDict(MOST)

    async def answer(self, request: Request, view: View) -> Response:
        """Return the answer of a view, or a shared one that is up to date.

        Args:
            request: The request; only its URL and the number of an event matter.
            view: The view.

        Raises:
            LocalpuppetError: What the view raises.
        """
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
