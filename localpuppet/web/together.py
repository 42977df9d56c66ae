"""One rendering of a view for all who ask for the same while nothing has changed.

A change wakes every page that listens, and each asks for itself again: they are given one answer.

Owns: for how long an answer is the same. Refuses to know: what it says.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from localpuppet.machine.ports import Clock
from localpuppet.web.fleet import Fleet

# Seconds, whatever did not change: facts have no number, and ages go on.
FRESH = 1.0
MOST = 16

View = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    revision: int
    until: float
    task: "asyncio.Task[Response]"


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
        now = self._clock.monotonic()
        known = self._answers.get(key)
        if known is None or known.revision != self._fleet.revision or known.until <= now:
            task = asyncio.ensure_future(view(request))
            task.add_done_callback(_heard)
            known = _Answer(revision=self._fleet.revision, until=now + FRESH, task=task)
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
