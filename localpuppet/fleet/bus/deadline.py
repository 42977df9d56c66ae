"""Deadlines of calls to a store, and pauses between attempts.

A call may have to reconnect, prepare the stream and then send its request: these steps share one
timeout. Steps, also in tasks that they start, find the deadline in their context.
"""

import functools
import math
import time
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from random import SystemRandom
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

_END: ContextVar[float] = ContextVar("_END", default=math.inf)
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


class DeadlineCalls(Protocol):
    """A store whose calls have a deadline."""

    @property
    def timeout(self) -> float:
        """Return the seconds that a call may take."""


_Store = TypeVar("_Store", bound=DeadlineCalls)


def end_of_step(seconds: float) -> float:
    """Return the deadline of a step in monotonic seconds.

    Args:
        seconds: The step's own timeout.
    """
    return min(time.monotonic() + seconds, _END.get())


def in_time(
    method: Callable[Concatenate[_Store, _Given], Coroutine[Any, Any, _Result]],
) -> Callable[Concatenate[_Store, _Given], Coroutine[Any, Any, _Result]]:
    """Wrap a method so that its steps share the store's timeout, nested calls included."""

    @functools.wraps(method)
    async def timed(store: _Store, /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        token = _END.set(end_of_step(store.timeout))
        try:
            return await method(store, *args, **kwargs)
        finally:
            _END.reset(token)

    return timed


_CHANCE = SystemRandom().random
FIRST = 0.1
LONGEST = 0.5


class Backoff:
    """Pauses between attempts to reach an unreachable server.

    All nodes lose a server at the same moment, so each pause is random: from half of a time to all
    of it. That time doubles from `FIRST` seconds to the longest.

    Args:
        chance: Returns a number from 0 to 1.
        longest: The longest pause in seconds.
    """

    def __init__(self, chance: Callable[[], float] = _CHANCE, *, longest: float = LONGEST) -> None:
        self._chance = chance
        self._longest = longest
        self._whole = FIRST

    def reset(self) -> None:
        """Start again with the shortest pause, after the server has answered."""
        self._whole = FIRST

    def pause(self) -> float:
        """Return the seconds of the next pause."""
        whole, self._whole = self._whole, min(2 * self._whole, self._longest)
        return whole * (1 + self._chance()) / 2
