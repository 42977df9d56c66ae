"""An event loop whose clock does not wait: time goes on when nothing else is to be done."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

# Simulated seconds in which everything is over.
LONGEST = 100_000.0

_Result = TypeVar("_Result")


class _Selector(selectors.SelectSelector):
    """Lets time pass instead of waiting for it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "nothing will ever happen any more"
            self.now += max(timeout, 0.0)
            assert self.now < LONGEST, "nothing comes to an end any more"
        return ready


class SimulatedLoop(asyncio.SelectorEventLoop):
    """The loop."""

    def __init__(self) -> None:
        self._simulated = _Selector()
        super().__init__(self._simulated)

    def time(self) -> float:
        return self._simulated.now


def run_simulated(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run work to its end in simulated time."""
    loop = SimulatedLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()
