"""The deadline of a call to a store: one for all the steps that it takes.

A call that finds its connection gone connects, asks what is there, and asks its question. Each of
these could have the whole time; together they have it once. Steps of one call, also in tasks that
it starts, find its end in their context.
"""

import functools
import math
import time
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

_END: ContextVar[float] = ContextVar("_END", default=math.inf)
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


class Timed(Protocol):
    """What has calls with a deadline."""

    @property
    def timeout(self) -> float:
        """Return the seconds that a call may take."""
        ...


_Store = TypeVar("_Store", bound=Timed)


def end_of_step(seconds: float) -> float:
    """Return when a step must have ended, in monotonic seconds.

    Args:
        seconds: How long it may take by itself.
    """
    return min(time.monotonic() + seconds, _END.get())


def in_time(
    method: Callable[Concatenate[_Store, _Given], Coroutine[Any, Any, _Result]],
) -> Callable[Concatenate[_Store, _Given], Coroutine[Any, Any, _Result]]:
    """Return a method whose steps have the store's timeout together; nested ones have no more."""

    @functools.wraps(method)
    async def timed(store: _Store, /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        token = _END.set(end_of_step(store.timeout))
        try:
            return await method(store, *args, **kwargs)
        finally:
            _END.reset(token)

    return timed
