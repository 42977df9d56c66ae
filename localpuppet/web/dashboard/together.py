"""One rendering of a view for all who ask for the same while nothing has changed.

A change wakes every page that listens, and each asks for itself again: they are given one answer.
Where changes come one after the other, each answer has what there was when it was begun, and one is
begun after a rest: who comes meanwhile waits for it, so that no view has the server for itself.

Owns: for how long an answer is the same, and how often one is made. Refuses to know: what it says.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from localpuppet.base.machine.ports import Clock
from localpuppet.web.dashboard.fleet import Fleet

# Seconds, whatever did not change: facts have no number, and ages go on.
FRESH = 1.0
MOST = 16
# How many times as long as an answer took to make none is made of that view, and seconds at most.
REST, MOST_REST = 4.0, 0.4

View = Callable[[Request], Awaitable[Response]]


class _Answer:
    """One answer; it has what there is when it begins.

    Args:
        make: Makes it.
        before: The one that it replaces: it ends, and is rested from, before, unless it hangs.
        fleet: Says whether something has changed.
        clock: Time.
    """

    def __init__(
        self,
        make: Callable[[], Awaitable[Response]],
        before: "_Answer | None",
        fleet: Fleet,
        clock: Clock,
    ) -> None:
        self._fleet = fleet
        self._clock = clock
        self._begun = False
        self._revision = 0
        self._until = 0.0
        self._rests_until = 0.0
        self.task = asyncio.ensure_future(self._made(make, before))
        self.task.add_done_callback(_heard)

    @property
    def true(self) -> bool:
        """Whether it has all that has happened."""
        if not self._begun:
            return True
        unchanged = self._revision == self._fleet.revision
        return unchanged and self._until > self._clock.monotonic()

    async def _made(
        self, make: Callable[[], Awaitable[Response]], before: "_Answer | None"
    ) -> Response:
        if before is not None:
            await asyncio.wait([before.task], timeout=MOST_REST)
            await asyncio.sleep(max(0.0, before._rests_until - self._clock.monotonic()))
        begun = self._clock.monotonic()
        self._begun, self._revision, self._until = True, self._fleet.revision, begun + FRESH
        try:
            return await make()
        finally:
            now = self._clock.monotonic()
            self._rests_until = now + min(MOST_REST, REST * (now - begun))


class Together:
    """Answers.

    Args:
        fleet: Says whether something has changed.
        clock: Time.
    """

    def __init__(self, fleet: Fleet, clock: Clock) -> None:
        self._fleet = fleet
        self._clock = clock
        self._answers: OrderedDict[str, _Answer] = OrderedDict()

    async def answer(self, request: Request, view: View) -> Response:
        """Return what a view answers, or has answered somebody else just now.

        Args:
            request: Whose URL says what is asked for, and nothing else does.
            view: Answers it.

        Raises:
            LocalpuppetError: What the view raises.
        """
        key = f"{request.url.path}?{request.url.query}"
        known = self._answers.get(key)
        if known is None or not known.true:
            known = _Answer(lambda: view(request), known, self._fleet, self._clock)
            self._answers[key] = known
            self._answers.move_to_end(key)
            while len(self._answers) > MOST:
                self._answers.popitem(last=False)
        # One who goes away does not take the answer from the others.
        return await asyncio.shield(known.task)


def _heard(task: "asyncio.Task[Response]") -> None:
    """Take note of an error that nobody waits for any more."""
    if not task.cancelled():
        task.exception()
